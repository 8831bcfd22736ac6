"""The layering check finds what it promises to find, and nothing in a tree that keeps the rules."""
import pathlib
import subprocess
import sys

import pytest

CHECK = pathlib.Path(__file__).resolve().parents[2] / "tools" / "check_layers.py"


def check(root):
    result = subprocess.run([sys.executable, CHECK, root], capture_output=True, text=True)
    return result.returncode, result.stdout + result.stderr


def write(root, name, text):
    path = root / "src" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.fixture
def tree(tmp_path):
    write(tmp_path, "base/error.hpp", "#pragma once\n#include <string>\n")
    write(tmp_path, "plan/plan.cpp", '#include "base/error.hpp"\n#include "plan/plan.hpp"\n#include <vector>\n')
    write(tmp_path, "plan/CMakeLists.txt", "tessera_room(plan DEPENDS tessera::base tessera::model)\n")
    write(tmp_path, "nn/block.cpp", "#include <ATen/ops/mm.h>\n")
    write(tmp_path, "train/worker_main.cpp", '#include "control/launch.hpp"\n#include "observe/run.hpp"\n')
    write(tmp_path, "train/CMakeLists.txt",
          "tessera_room(train DEPENDS tessera::nn)\nadd_executable(tessera-worker worker_main.cpp)\n"
          "target_link_libraries(tessera-worker PRIVATE tessera::train tessera::control)\n")
    return tmp_path


def test_a_tree_that_keeps_the_rules_passes(tree):
    code, output = check(tree)
    assert code == 0, output


def test_an_include_of_a_room_below_is_named_with_its_line(tree):
    write(tree, "plan/search.cpp", '#include "base/error.hpp"\n\n#include "sim/sim.hpp"\n')
    code, output = check(tree)
    assert code != 0
    assert 'src/plan/search.cpp:3: includes "sim/sim.hpp": sim is below plan' in output


def test_a_link_to_a_room_below_is_named_with_its_line(tree):
    write(tree, "plan/CMakeLists.txt", "# links tessera::sim would be wrong\ntessera_room(plan\n  DEPENDS tessera::base\n  PRIVATE_DEPENDS tessera::cli)\n")
    code, output = check(tree)
    assert code != 0
    assert "src/plan/CMakeLists.txt:4: links tessera::cli" in output
    assert "tessera::sim" not in output


@pytest.mark.parametrize("header", ["<torch/types.h>", "<ATen/ATen.h>", "<c10/util/Exception.h>", '"ATen/ATen.h"'])
def test_torch_is_kept_out_of_the_other_rooms(tree, header):
    write(tree, "comm/comm.cpp", f"#include {header}\n")
    code, output = check(tree)
    assert code != 0
    assert "src/comm/comm.cpp:1" in output and "torch is for" in output


def test_a_room_below_the_torch_rooms_may_not_use_them_either(tree):
    write(tree, "cli/train_command.cpp", '#include "train/trainer.hpp"\n')
    code, output = check(tree)
    assert code != 0
    assert "train holds torch, and cli must do without" in output


def test_the_headers_that_pull_in_all_of_torch_are_refused_everywhere(tree):
    write(tree, "nn/linear.cpp", "#include <torch/torch.h>\n")
    code, output = check(tree)
    assert code != 0
    assert "src/nn/linear.cpp:1" in output


def test_only_a_main_may_join_rooms(tree):
    write(tree, "train/loop.cpp", '#include "control/launch.hpp"\n')
    code, output = check(tree)
    assert code != 0
    assert "src/train/loop.cpp:1" in output and "worker_main" not in output


def test_a_folder_that_is_no_room_is_refused(tree):
    write(tree, "misc/a.hpp", "")
    code, output = check(tree)
    assert code != 0
    assert "src/misc: is no room" in output
