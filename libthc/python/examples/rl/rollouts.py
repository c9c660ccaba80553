# SPDX-License-Identifier: Apache-2.0
"""The rollouts as the trainer sees them: servers of vLLM, by HTTP."""

import contextlib
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, List, Optional, Tuple

import requests
import torch

PROMPT, COMPLETION = 4, 16  # tokens


class Rollout:
    """One server. A thread works its calls off in their order, so all servers work at once.

    When one of the calls that bring weights fails, the rest of them is left out.
    """

    def __init__(self, url: str, timeout: float) -> None:
        self.url, self.timeout = url.rstrip("/"), timeout
        self.version: Optional[str] = None  #: of the weights that it has for sure
        self.stall = 0.0  #: seconds that the last weights have kept it from generating
        self._began, self._failure, self._said = 0.0, "", ""
        self._thread = ThreadPoolExecutor(1)

    def submit(
        self, call: str, begins: bool = False, version: Optional[str] = None, **json: Any
    ) -> "Future[Any]":
        """begins: new weights are to come; version: when this call has ended they are here."""
        return self._thread.submit(self._run, call, begins, version, json)

    def _run(self, call: str, begins: bool, version: Optional[str], json: "dict[str, Any]") -> Any:
        if begins:
            self.version, self._failure, self._began = None, "", time.monotonic()
        if self._failure:
            return None
        try:
            answer = requests.post(f"{self.url}/{call}", json=json, timeout=self.timeout)
            if not answer.ok:
                raise requests.HTTPError(answer.text)
        except requests.RequestException as failure:
            lost = isinstance(failure, requests.ConnectionError)
            self.version, self._failure = None, "it does not answer" if lost else str(failure)
            self._say(self._failure)
            return None
        if version is not None:
            self.version, self.stall = version, time.monotonic() - self._began
            self._say("it takes part")
        return answer.json()

    def end_update(self) -> None:
        """Where none has begun the server refuses, which is as good."""
        address = f"{self.url}/finish_weight_update"
        with contextlib.suppress(requests.RequestException):
            requests.post(address, json={}, timeout=self.timeout)

    def _say(self, what: str) -> None:
        if what != self._said:
            print(f"{self.url}: {what}", flush=True)
        self._said = what

    def settled(self) -> "Rollout":
        """When it has done what it was told so far."""
        self._thread.submit(int).result()
        return self


class Rollouts:
    """All servers. For trainer engines of vLLM it is the client, and tells them all the same.

    A server that does not answer is left out until the next weights; one that starts, or starts
    again, at any time takes part from the next weights on.
    """

    def __init__(self, urls: List[str], timeout: float = 600.0) -> None:
        self.all = [Rollout(url, timeout) for url in urls]

    def init_weight_transfer_engine(self, init_info: Any) -> None:
        """Ends what a trainer that was lost has begun: vLLM would begin nothing else. Of the info
        there is no need: an update says all of it, also to a server that comes later."""
        for rollout in self.all:
            rollout.end_update()

    def start_weight_update(self) -> None:
        self.call("start_weight_update", begins=True)

    def update_weights(self, update_info: Any) -> None:
        self.call("update_weights", update_info=update_info)

    def finish_weight_update(self, weight_version: Optional[str] = None) -> None:
        self.call("finish_weight_update", version=weight_version, weight_version=weight_version)

    def call(self, name: str, **arguments: Any) -> None:
        """Returns at once: the servers work it off while the trainer goes on."""
        for rollout in self.all:
            rollout.submit(name, **arguments)

    def wait(self) -> None:
        """Until all servers answer."""
        for rollout in self.all:
            while rollout.submit("resume").result() is None:
                time.sleep(1.0)

    def ready(self, step: int) -> List[Rollout]:
        """Those that have the weights of this step, when each has them or has failed."""
        return [one for one in self.all if one.settled().version == str(step)]

    def sample(
        self, step: int, prompts: "list[list[int]]", group: int
    ) -> "Optional[Tuple[torch.Tensor, torch.Tensor]]":
        """A group of completions of each prompt, with the weights of this step, by all servers.

        Prompts and completions, [prompts x group, PROMPT + COMPLETION], one group after the other,
        and what the servers say of the log-probability of each completion's tokens. None: no server
        has the weights, or one was lost meanwhile; send the weights again.
        """
        ready = self.ready(step)
        shares = [prompts[i :: len(ready)] for i in range(len(ready))]
        answers = [
            rollout.submit(
                "v1/completions", prompt=share, n=group, max_tokens=COMPLETION, temperature=1.0,
                logprobs=0, ignore_eos=True, detokenize=False, return_token_ids=True,
                return_tokens_as_token_ids=True,
            )
            for rollout, share in zip(ready, shares)
            if share
        ]  # fmt: skip
        samples = [answer.result() for answer in answers]
        if not samples or None in samples:
            return None
        choices = [choice for sample in samples for choice in sample["choices"]]
        return (
            torch.tensor([one["prompt_token_ids"] + one["token_ids"] for one in choices]),
            torch.tensor([one["logprobs"]["token_logprobs"] for one in choices]),
        )
