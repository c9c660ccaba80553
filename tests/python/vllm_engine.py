# SPDX-License-Identifier: Apache-2.0
"""An engine of vLLM in a process of its own, for test_vllm.py: vllm_engine.py ARGUMENTS-OF-LLM.

Each line of stdin is a call, [name, arguments ...], and each of stdout its answer, as JSON.
"""

import json
import multiprocessing
import os
import sys

PROMPT, COUNT = [1, 2, 3, 4], 12


def place():
    """A plugin of vLLM: gives the first worker of an engine an agent of its own."""
    if multiprocessing.current_process().name == "VllmWorker-0":
        os.environ["THC_AGENT"] = os.environ["TH_TEST_AGENT_OF_WORKER_0"]


def main():
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # vLLM writes to both
    from vllm import LLM, SamplingParams

    llm = LLM(**json.loads(sys.argv[1]))
    greedy = SamplingParams(temperature=0, max_tokens=COUNT, detokenize=False, ignore_eos=True)

    def tokens():
        (one,) = llm.generate([{"prompt_token_ids": PROMPT}], greedy, use_tqdm=False)
        return list(one.outputs[0].token_ids)

    calls = {
        "tokens": tokens,
        "digests": lambda: llm.collective_rpc("compute_weight_checksums"),
        "version": llm.get_weight_version,
        "init": lambda info: llm.init_weight_transfer_engine({"init_info": info}),
        "start": llm.start_weight_update,
        "update": lambda info: llm.update_weights({"update_info": info}),
        "finish": llm.finish_weight_update,
    }
    print(json.dumps("ready"), file=answers)
    for line in sys.stdin:
        name, *arguments = json.loads(line)
        try:
            answer = calls[name](*arguments)
        except Exception as failure:  # the test looks at it
            answer = {"failure": f"{type(failure).__name__}: {failure}"}
        print(json.dumps(answer), file=answers)


if __name__ == "__main__":
    main()
