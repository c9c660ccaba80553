# SPDX-License-Identifier: Apache-2.0
"""Eight rollouts and their trainer in one event loop: every verb that may wait is a coroutine.

    python async_rollouts.py --rollouts 8 --steps 4

No thread is started: the loop itself watches the descriptor of each handle.
"""

import argparse
import array
import asyncio

import tensorhub as th

SIZE = 1 << 16  # elements


async def train(model: str, steps: int, rollouts: int, done: asyncio.Event) -> None:
    weights = th.empty((SIZE,), "F32")
    async with th.aio.open(model, replica="trainer") as h:
        await h.register({"layer.0.weight": weights})
        for step in range(1, steps + 1):
            weights[:] = array.array("f", [step]) * SIZE
            await h.publish(step)
            if step < steps:  # so that each rollout sees each version, which none has to
                await h.wait(lambda versions: len(versions.get(step, ())) > rollouts)
                await h.unpublish()
        await done.wait()


async def roll_out(model: str, number: int, last: int) -> int:
    """Returns how many versions it has generated with."""
    weights, versions = th.empty((SIZE,), "F32"), 0
    async with th.aio.open(model, replica=f"rollout{number}") as h:
        await h.register({"layer.0.weight": weights})
        result = await h.replicate("latest")
        while True:
            versions += bool(result)
            assert set(weights) == {h.version}
            if h.version >= last:
                return versions
            await h.wait(lambda versions: max(versions, default=0) > h.version)
            result = await h.update("latest")


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="async-example")
    parser.add_argument("--rollouts", type=int, default=8)
    parser.add_argument("--steps", type=int, default=4)
    args = parser.parse_args()
    done = asyncio.Event()
    trainer = asyncio.create_task(train(args.model, args.steps, args.rollouts, done))
    versions = await asyncio.gather(
        *(roll_out(args.model, i, args.steps) for i in range(args.rollouts))
    )
    done.set()
    await trainer
    for number, count in enumerate(versions):
        print(f"rollout{number}: {count} versions")


if __name__ == "__main__":
    asyncio.run(main())
