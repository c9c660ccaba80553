# SPDX-License-Identifier: Apache-2.0
"""th.load where torch is imported: types, shapes and ties as they were published."""

import pytest
import tensorhub as th

torch = pytest.importorskip("torch", reason="torch is not installed")


def test_load_gives_torch_tensors(agent, model):
    tied = torch.rand(16, 8)
    sent = {
        "embed": tied, "head": tied, "norm": torch.rand(8).to(torch.bfloat16),
        "scale": torch.tensor(2.0), "none": torch.empty(0, 4), "ids": torch.arange(9),
        "fp8": torch.rand(4, 4).to(torch.float8_e4m3fn),
    }  # fmt: skip
    with th.open(model, replica="t") as t:
        t.register(sent)
        t.publish(1)
        got = th.load(model)
        for name, tensor in sent.items():
            assert got[name].dtype == tensor.dtype and got[name].shape == tensor.shape, name
            assert torch.equal(got[name].to(torch.float32), tensor.to(torch.float32)), name
        assert got["embed"].data_ptr() == got["head"].data_ptr()
        module = torch.nn.Linear(8, 16, bias=False)
        module.load_state_dict({"weight": got["embed"]})
        assert torch.equal(module.weight, tied)
        t.unpublish()
