# SPDX-License-Identifier: Apache-2.0
"""What the commands of the lab have in common: where the programs are, and how options are read.
Imported first: tests/e2e/cluster.py takes the folder of the build from the environment.
"""

import argparse
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
os.environ["TH_BUILD"] = os.path.abspath(os.environ.get("TH_BUILD", "build"))
sys.path.insert(0, os.path.join(HERE, "..", "e2e"))


def parser(text):
    """Its usage is the text of the command."""
    return argparse.ArgumentParser(usage=text.replace("%", "%%"))


def need_build():
    """Ends the command with a sentence where nothing is built."""
    build = os.environ["TH_BUILD"]
    if not os.path.exists(os.path.join(build, "server", "thserverd")):
        sys.exit(f"{build} has no server/thserverd: TH_BUILD must name the folder that ninja built")
