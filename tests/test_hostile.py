"""A few of the cases of `make hostile`."""

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
def test_hostile_folders_and_command_lines_do_no_harm():
    script = Path(__file__).with_name("hostile.py")
    command = [sys.executable, script, "--cases", "150", "--seed", "7"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
