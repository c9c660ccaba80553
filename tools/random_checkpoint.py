#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes a safetensors file with random weights and the tensor names and shapes of Qwen3-0.6B.

A checkpoint to try things out with, where none is at hand: 596 million parameters, 1.2 GB. The
output matrix is tied to the embedding in that model, so it has no tensor of its own.
"""

import argparse
import json
import os
import struct
import sys

VOCABULARY = 151936
HIDDEN = 1024
INTERMEDIATE = 3072
LAYERS = 28
HEAD = 128  # numbers in one attention head
QUERY_HEADS = 16
KEY_HEADS = 8  # shared by two query heads each

DTYPE, DTYPE_BYTES = 'BF16', 2
BLOCK_BYTES = 8 << 20


def layer_tensors():
    """(name, shape) of one layer, as a checkpoint of that model names them."""
    return [
        ('input_layernorm', [HIDDEN]),
        ('mlp.down_proj', [HIDDEN, INTERMEDIATE]),
        ('mlp.gate_proj', [INTERMEDIATE, HIDDEN]),
        ('mlp.up_proj', [INTERMEDIATE, HIDDEN]),
        ('post_attention_layernorm', [HIDDEN]),
        ('self_attn.k_norm', [HEAD]),
        ('self_attn.k_proj', [KEY_HEADS * HEAD, HIDDEN]),
        ('self_attn.o_proj', [HIDDEN, QUERY_HEADS * HEAD]),
        ('self_attn.q_norm', [HEAD]),
        ('self_attn.q_proj', [QUERY_HEADS * HEAD, HIDDEN]),
        ('self_attn.v_proj', [KEY_HEADS * HEAD, HIDDEN]),
    ]


def tensors(layers):
    yield 'model.embed_tokens.weight', [VOCABULARY, HIDDEN]
    for layer in range(layers):
        for name, shape in layer_tensors():
            yield f'model.layers.{layer}.{name}.weight', shape
    yield 'model.norm.weight', [HIDDEN]


def make_header(layers):
    """The header's bytes, padded to a multiple of 8, and how many bytes of data follow."""
    header, end = {'__metadata__': {'format': 'pt'}}, 0
    for name, shape in tensors(layers):
        size = DTYPE_BYTES
        for dimension in shape:
            size *= dimension
        header[name] = {'dtype': DTYPE, 'shape': shape, 'data_offsets': [end, end + size]}
        end += size
    text = json.dumps(header, separators=(',', ':')).encode()
    return text + b' ' * (-len(text) % 8), end


def main():
    parser = argparse.ArgumentParser(description=__doc__.split('\n', maxsplit=1)[0])
    parser.add_argument('out', help='the file to write')
    parser.add_argument('--layers', type=int, default=LAYERS, help='fewer make a smaller file')
    options = parser.parse_args()
    header, left = make_header(options.layers)
    try:
        with open(options.out, 'xb') as out:
            out.write(struct.pack('<Q', len(header)) + header)
            while left > 0:
                # No block twice: a piece that ends up in another's place must be noticed.
                left -= out.write(os.urandom(min(left, BLOCK_BYTES)))
    except OSError as error:
        sys.exit(f'{options.out}: {error.strerror}')


if __name__ == '__main__':
    main()
