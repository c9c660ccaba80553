# SPDX-License-Identifier: Apache-2.0
"""The trainer of a small loop of reinforcement learning, one of its ranks; run.py starts all of it.

    torchrun --nproc-per-node 2 train.py --model DIR --rollout URL --rollout URL ...

FSDP2 over gloo. In each step the rollouts get the weights, complete prompts with them, and the
policy gradient (GRPO: what is better than its group is made likelier) is of just these weights: the
log-probabilities that the rollouts have answered must be those that the trainer computes.
"""

import argparse
import json
import os
import sys
import time

import torch
import torch.distributed as dist
import transformers
from rollouts import COMPLETION, PROMPT, Rollouts
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from transfers import TRANSFERS

PROMPTS, GROUP = 8, 8

# What a rollout's log-probability may differ from the trainer's with the same weights, in steps of
# the type at the largest logit, for each layer. Both programs round what a layer yields, and in
# bfloat16 to one of two neighbours; in float32 sums are added up in another order.
STEPS_APART = {"bfloat16": 1, "float32": 32}


def reward_of(completions: torch.Tensor, vocabulary: int) -> torch.Tensor:
    """The share of a completion's tokens that are of the first quarter of the vocabulary."""
    return (completions < vocabulary // 4).float().mean(-1)


def policy(folder: str, dtype: str) -> torch.nn.Module:
    """Random weights, on all ranks the same; float32 to be trained, computed with in dtype."""
    torch.manual_seed(0)
    config = transformers.AutoConfig.from_pretrained(folder)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    cast = MixedPrecisionPolicy(param_dtype=getattr(torch, dtype), reduce_dtype=torch.float32)
    for layer in model.model.layers:
        fully_shard(layer, mp_policy=cast)
    return fully_shard(model, mp_policy=cast, reshard_after_forward=True)


def log_probabilities(model: torch.nn.Module, tokens: torch.Tensor):
    """Of each token of the completions; and the largest logit."""
    logits = model(tokens[:, :-1]).logits[:, PROMPT - 1 :].float()
    chosen = logits.log_softmax(-1).gather(-1, tokens[:, PROMPT:, None])[..., 0]
    return chosen, logits.detach().abs().max()


def on_all_ranks(samples: "tuple[torch.Tensor, torch.Tensor] | None"):
    """What rank 0 has, or None."""
    shape = PROMPTS * GROUP, PROMPT + COMPLETION
    tokens, theirs = samples or (torch.full(shape, -1), torch.zeros(shape[0], COMPLETION))
    dist.broadcast(tokens, 0)
    dist.broadcast(theirs, 0)
    return None if tokens[0, 0] < 0 else (tokens, theirs)


def train(args: argparse.Namespace) -> None:
    rank, ranks = dist.get_rank(), dist.get_world_size()
    rollouts = Rollouts(args.rollout)
    model = policy(args.model, args.dtype)
    transfers = [(kind, TRANSFERS[kind](args, model, rank, rollouts)) for kind in args.transfer]
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    first = max(transfer.resume() for _kind, transfer in transfers)
    print(f"rank {rank}: process {os.getpid()}, from step {first} on", flush=True)
    for step in range(first, args.steps):
        kind, transfer = transfers[step % len(transfers)]
        drawn = torch.Generator().manual_seed(step)  # on all ranks the same
        prompts = torch.randint(model.config.vocab_size, (PROMPTS, PROMPT), generator=drawn)
        samples = None
        while samples is None:
            began = time.monotonic()
            transfer.send(step)
            stood = time.monotonic() - began
            if rank == 0:
                rollouts.ready(step)
                ready = time.monotonic() - began
                samples = rollouts.sample(step, prompts.tolist(), GROUP) or time.sleep(1.0)
            samples = on_all_ranks(samples)
        tokens, theirs = samples[0][rank::ranks], samples[1][rank::ranks]
        rewards = reward_of(samples[0][:, PROMPT:], model.config.vocab_size).view(-1, GROUP)
        better = (rewards - rewards.mean(1, keepdim=True)) / (rewards.std(1, keepdim=True) + 1e-4)
        ours, largest = log_probabilities(model, tokens)
        loss = -(better.view(-1, 1)[rank::ranks] * ours).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            after, _ = log_probabilities(model, tokens)
        apart, moved = (ours.detach() - theirs).abs().max(), (after - ours.detach()).abs().max()
        numbers = torch.stack([apart, moved, largest])
        dist.all_reduce(numbers, dist.ReduceOp.MAX)
        if rank == 0:
            apart, moved, largest = numbers.tolist()
            eps = torch.finfo(getattr(torch, args.dtype)).eps
            may = STEPS_APART[args.dtype] * model.config.num_hidden_layers * eps * largest
            row = dict(step=step, transfer=kind, reward=rewards.mean().item())
            row.update(apart=apart, may=may, moved=moved, trainer=stood, ready=ready)
            row.update(rollouts={one.url: one.stall for one in rollouts.ready(step)})
            report(row, args.report)


def report(row: "dict", path: "str | None") -> None:
    """Prints what a step has come to, and ends the training when rollouts had other weights."""
    stalls = " ".join(f"{one:.3f}" for one in row["rollouts"].values())
    print(
        "step {step}: reward {reward:.3f}; log-probabilities are {apart:.1e} apart (at most "
        "{may:.1e}), the update moves them by {moved:.1e}; the trainer stood for {trainer:.3f} s, "
        "rollouts for {stalls}".format(stalls=stalls, **row), flush=True,
    )  # fmt: skip
    if path:
        with open(path, "a", encoding="utf-8") as log:
            log.write(json.dumps(row) + "\n")
    if row["apart"] > row["may"]:
        sys.exit(
            "step {step}: log-probabilities of a rollout are {apart:.1e} from the trainer's, and "
            "may be {may:.1e}: it has other weights, or computes in another way".format(**row)
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True, help="a folder with a config.json, no weights")
    parser.add_argument("--name", default="policy", help="what agents call the weights")
    parser.add_argument("--rollout", action="append", required=True, help="a server's URL; several")
    parser.add_argument(
        "--transfer", choices=TRANSFERS, nargs="+", default=["tensorhub"],
        help="how weights get to the rollouts; of several each step takes the next",
    )  # fmt: skip
    parser.add_argument("--files", help="where --transfer files writes: a folder all hosts see")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--dtype", choices=STEPS_APART, default="bfloat16", help="of the rollouts")
    parser.add_argument("--lr", type=float, default=1e-2)
    parser.add_argument("--report", help="a file that gets a line of JSON for each step")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    train(args)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
