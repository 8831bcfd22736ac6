"""Models from shared libraries: what is wrong with them is said by file, line, key and block. Training them is what their page walks through."""

import shutil
import subprocess

import pytest

from conftest import BINARIES, REPOSITORY, SHAKESPEARE

# A chain of one layer between embedding and head, which is wrong in the way that its arch says.
WRONG = """
#include <ATen/ATen.h>
#include <tessera/plugin.hpp>

using namespace tessera;

namespace {

model::ModelSpec read(const model::Settings& settings, const std::string& fault) {
  settings.allow_only({"hidden", "seq", "vocab"});
  const std::int64_t hidden = settings.count("hidden"), seq = settings.count("seq"), vocab = settings.count("vocab");
  model::ModelSpec out;
  out.arch = fault;
  for (const auto& [key, value] : {std::pair("hidden", hidden), {"seq", seq}, {"vocab", vocab}}) out.dims[key] = static_cast<double>(value);
  const model::TensorSpec passed{"hidden", {seq, hidden}};
  const auto add = [&](const std::string& kind, model::ParameterSpec parameter, std::vector<model::TensorSpec> inputs, std::vector<model::TensorSpec> outputs) {
    out.repeats.push_back({{kind, kind.substr(6), {}, {std::move(parameter)}, std::move(inputs), std::move(outputs)}, 1});
  };
  add("wrong_embed", {"embed.weight", {vocab, hidden}}, {}, {passed});
  add(fault == "unknown_kind" ? "wrong_layre" : fault == "narrow" || fault == "failing" ? "wrong_" + fault : "wrong_layer", {"layer.weight", {hidden, hidden}},
      {fault == "unmade" ? model::TensorSpec{"hiden", {seq, hidden}} : passed}, {passed});
  add("wrong_head", {"head.weight", {vocab, hidden}}, {passed}, {{"loss", {}}});
  return out;
}

nn::Tensors embed(const model::BlockSpec&, const nn::Tensors&, const nn::Tensors& parameters, const nn::Pass& pass) {
  return {at::embedding(parameters[0], pass.batch->at("tokens"))};
}
nn::Tensors layer(const model::BlockSpec&, const nn::Tensors& inputs, const nn::Tensors& parameters, const nn::Pass&) {
  return {at::linear(inputs[0], parameters[0])};
}
nn::Tensors narrow(const model::BlockSpec&, const nn::Tensors& inputs, const nn::Tensors&, const nn::Pass&) { return {inputs[0].narrow(2, 0, 4)}; }
nn::Tensors failing(const model::BlockSpec&, const nn::Tensors& inputs, const nn::Tensors&, const nn::Pass&) { return {inputs[0] + inputs[0].narrow(2, 0, 4)}; }
nn::Tensors head(const model::BlockSpec&, const nn::Tensors& inputs, const nn::Tensors& parameters, const nn::Pass& pass) {
  const at::Tensor logits = at::linear(inputs[0], parameters[0]).flatten(0, 1);
  return {at::cross_entropy_loss(logits, pass.batch->at("targets").flatten(), {}, at::Reduction::Sum, -1), at::scalar_tensor(logits.size(0), at::kLong)};
}

}  // namespace

TESSERA_PLUGIN() {
  for (const std::string fault : {"unknown_kind", "narrow", "failing", "unmade", "right"})
    model::register_arch(fault, [fault](const model::Settings& settings) { return read(settings, fault); });
  nn::register_forward("wrong_embed", embed);
  nn::register_forward("wrong_layer", layer);
  nn::register_forward("wrong_narrow", narrow);
  nn::register_forward("wrong_failing", failing);
  nn::register_forward("wrong_head", head);
}
"""

JOB = """name: mine
model:
  plugin: ./libwrong.so
  arch: ARCH
  hidden: 16
  seq: 8
  vocab: 300
data: {source: SOURCE, tokenizer: {kind: bytes}}
train: {steps: 3, global_batch: 8}
parallel: {dp: 1}
""".replace("SOURCE", str(SHAKESPEARE))


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """The plug-in, built against an installed Tessera."""
    folder = tmp_path_factory.mktemp("plugin")
    subprocess.run(["cmake", "--install", BINARIES.parent, "--prefix", folder / "tessera"], check=True, capture_output=True)
    (folder / "wrong.cpp").write_text(WRONG)
    (folder / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.25)\nproject(wrong LANGUAGES CXX)\nfind_package(Tessera REQUIRED)\ntessera_add_plugin(wrong wrong.cpp)\n")
    for words in (["-S", folder, "-B", folder / "build", f"-DCMAKE_PREFIX_PATH={folder / 'tessera'}"], ["--build", folder / "build"]):
        built = subprocess.run(["cmake", *words], capture_output=True, text=True)
        assert built.returncode == 0, built.stdout + built.stderr
    return folder / "build" / "libwrong.so"


def c_library(folder, source):
    (folder / "small.c").write_text(source)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", folder / "libwrong.so", folder / "small.c"], check=True)


def refused(tessera, arch, *words, arguments=(), command="train"):
    path = tessera.write("job.yaml", JOB.replace("ARCH", arch))
    result = tessera(command, path, *arguments, check=False)
    assert result.returncode not in (0, 70), result.stdout + result.stderr
    for word in words:
        assert word in result.stderr, f"{word!r} is not in:\n{result.stderr}"


def test_what_is_no_plug_in_is_refused(tessera):
    refused(tessera, "right", "job.yaml:3", "there is no file", "libwrong.so", command="plan")
    tessera.write("libwrong.so", "text")
    refused(tessera, "right", "job.yaml:3", "the library cannot be loaded", "find_package(Tessera)", command="plan")
    c_library(tessera.folder, "int mine(void) { return 1; }\n")
    refused(tessera, "right", "job.yaml:3", "tessera_plugin_version", "TESSERA_PLUGIN()")
    c_library(tessera.folder, 'const char* tessera_plugin_version(void) { return "0.0.1"; }\nvoid tessera_register_plugin(void) {}\n')
    refused(tessera, "right", "job.yaml:3", "built for Tessera 0.0.1", "build it again")


def test_what_is_wrong_with_its_model_is_named(tessera, library):
    shutil.copy(library, tessera.folder)
    refused(tessera, "rigth", "job.yaml:4", "'rigth'", "did you mean 'right'?")
    refused(tessera, "right\n  hiden: 4", "job.yaml:5", "did you mean 'hidden'?")
    refused(tessera, "unknown_kind", 'no block of kind "wrong_layre"', "wrong_layer")
    refused(tessera, "unmade", "block layer reads hiden, which no block before it makes")
    refused(tessera, "narrow", "block narrow returns hidden as [1, 8, 4]", "[1, 8, 16]")
    refused(tessera, "failing", "block failing: its forward pass failed", "must match")
    # An override is said as such.
    refused(tessera, "right", "job.yaml with --set, the model section", "hidden: found 0", arguments=["--set", "model.hidden=0"])


def test_plans_cut_its_blocks_between_and_not_within_them(tessera, library):
    shutil.copy(library, tessera.folder)
    path = tessera.write("job.yaml", JOB.replace("ARCH", "right"))
    result = tessera("train", path, "--no-measure", "--set", "cluster.local.devices=2", "--set", "parallel={tp: 2}", check=False)
    assert result.returncode != 0 and "keeps whole" in result.stderr and "tp 1" in result.stderr, result.stderr
    tessera("train", path, "--no-measure", "--set", "cluster.local.devices=2", "--set", "parallel={pp: 2, micro_batches: 4}")
    assert len(tessera.metrics("mine")) == 3


def test_a_library_that_was_built_again_is_measured_again(tessera, library):
    shutil.copy(library, tessera.folder)
    path = tessera.write("job.yaml", JOB.replace("ARCH", "right"))
    tessera.environment["TESSERA_CACHE"] = str(tessera.folder / "cache")
    profiles = lambda: {file.name for file in (tessera.folder / "cache").glob("profile-*.json")}
    tessera("profile", path, "--seconds", 1)
    first = profiles()
    tessera("profile", path, "--seconds", 1)
    assert len(first) == 1 and profiles() == first
    with open(tessera.folder / "libwrong.so", "ab") as file:
        file.write(b"\0")
    tessera("profile", path, "--seconds", 1)
    assert len(profiles()) == 2


def test_the_example_is_what_its_page_says():
    readme = (REPOSITORY / "examples" / "own-model" / "README.md").read_text()
    source = (REPOSITORY / "examples" / "own-model" / "hourglass.cpp").read_text()
    lines = source.count("\n")
    assert f"of {round(lines, -1)} lines" in readme, lines
