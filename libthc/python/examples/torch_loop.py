# SPDX-License-Identifier: Apache-2.0
"""A torch training loop, and two rollouts that are processes of their own.

    python torch_loop.py --steps 5

The trainer's module lies in memory that agents map, so the optimizer writes where others read:
unpublish() before optimizer.step(), publish() after it. Each version brings the loss that the
trainer had with it, and each rollout finds the same with the weights that it has received.
"""

import argparse
import struct
import sys

import tensorhub as th
import torch
import torch.multiprocessing as mp

BATCH = 256


def network() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.Tanh(), torch.nn.Linear(256, 1))


def batch() -> "tuple[torch.Tensor, torch.Tensor]":
    inputs = torch.randn(BATCH, 64, generator=torch.Generator().manual_seed(1))
    return inputs, inputs[:, :4].prod(dim=1, keepdim=True)


def loss_of(module: torch.nn.Module) -> torch.Tensor:
    inputs, targets = batch()
    return torch.nn.functional.mse_loss(module(inputs), targets)


def train(model: str, steps: int, rollouts: "list[mp.Process]") -> None:
    module = th.share_(network())
    optimizer = torch.optim.Adam(module.parameters(), lr=1e-2)
    with th.open(model, replica="trainer") as h:
        h.register(module.state_dict())
        for step in range(1, steps + 1):
            loss = loss_of(module)
            optimizer.zero_grad()
            loss.backward()
            if step > 1:
                h.unpublish()
            optimizer.step()
            h.set_attribute("loss", struct.pack("d", loss_of(module).item()))
            h.publish(step)
            if step < steps:  # so that each rollout sees each version, which none has to
                h.wait(lambda versions: len(versions.get(step, ())) > len(rollouts))
        for rollout in rollouts:
            rollout.join()


def roll_out(model: str, replica: str, last: int) -> None:
    module = th.share_(network())
    with th.open(model, replica=replica) as h, torch.no_grad():
        h.register(module.state_dict())
        result = h.replicate("latest")
        while True:
            if result:
                (theirs,) = struct.unpack("d", h.manifest(h.version).attributes["loss"])
                ours = loss_of(module).item()
                assert abs(ours - theirs) < 1e-6, (ours, theirs)
                # One write a line, with PYTHONUNBUFFERED too: both rollouts write to one output.
                print(f"{replica}: version {h.version}, loss {ours:.4f}\n", end="", flush=True)
            if h.version >= last:
                break
            h.wait(lambda versions: max(versions, default=0) > h.version)
            result = h.update("latest")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="torch-example")
    parser.add_argument("--steps", type=int, default=5)
    args = parser.parse_args()
    context = mp.get_context("spawn")
    rollouts = [
        context.Process(target=roll_out, args=(args.model, f"rollout{i}", args.steps))
        for i in range(2)
    ]
    for rollout in rollouts:
        rollout.start()
    train(args.model, args.steps, rollouts)
    sys.exit(any(rollout.exitcode for rollout in rollouts))


if __name__ == "__main__":
    main()
