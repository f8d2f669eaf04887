"""Reading tests from C++ text and running them; the text is of our own making, in their form."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.ort_operators.cases import Case
from tests.ort_operators.child import read_file, run_stored
from tests.ort_operators.interpret import Reader
from tests.ort_operators.run import run_case
from tests.ort_operators.tokens import condition, tokenize

PLAIN = """
namespace somewhere {
// OpTester ignored("Relu");
TEST(AbsTest, Plain) {
  OpTester test("Abs", 13);
  test.AddInput<float>("x", {2, 2}, {1.0f, -2.f, -.5f, 0x10});
  test.AddOutput<float>("y", {2, 2}, {1.0f, 2.0f, 0.5f, 16.0f});
  test.Run();
}
TEST(AbsTest, Fails) {
  OpTester test("Abs", 13);
  test.AddInput<float>("x", {1}, {1.0f});
  test.AddOutput<float>("y", {1}, {-1.0f});
  test.Run(OpTester::ExpectResult::kExpectFailure, "no");
}
}  // namespace somewhere
"""

HELPERS = """
struct Shape { std::vector<int64_t> dims; bool constant; };
static const std::vector<float> kScale = {2.0f};
template <typename T, int opset>
void RunScaled(const Shape& shape, const std::vector<T>& values, T factor = static_cast<T>(2)) {
  OpTester test("Mul", opset);
  std::vector<T> wanted;
  for (size_t i = 0; i < values.size(); ++i) {
    wanted.push_back(values[i] * factor);
  }
  test.AddInput<T>("x", shape.dims, values);
  test.AddInput<T>("f", {1}, {factor}, shape.constant);
  test.AddOutput<T>("y", shape.dims, wanted);
  test.Run();
}
#if defined(USE_ROCM)
TEST(Scaled, Elsewhere) { Nonsense(); }
#else
TEST(Scaled, Types) {
  for (bool constant : {false, true}) {
    Shape shape{{3}, constant};
    RunScaled<float, 13>(shape, {1.f, 2.f, 3.f});
    if (constant) RunScaled<int64_t, 14>(shape, {1, 2, 3}, 5);
    else continue;
  }
  auto run = [&](int64_t axis) {
    OpTester test("ReduceSum", 13, onnxruntime::kOnnxDomain);
    test.AddAttribute<int64_t>("keepdims", 1 - 1);
    test.AddInput<MLFloat16>("data", {2, 2}, ToFloat16({1.f, 2.f, 3.f, 4.f}));
    test.AddInput<int64_t>("axes", {1}, {axis}, true);
    test.AddOutput<MLFloat16>("y", {2}, axis == 0 ? ToFloat16({4.f, 6.f}) : ToFloat16({3.f, 7.f}));
    test.Run();
  };
  run(0);
  run(-1);
}
#endif
TEST(Scaled, TooMuch) {
  OpTester test("Abs", 13);
  test.AddInput<float>("x", {1}, random.Uniform<float>({1}, 0.f, 1.f));
  test.Run();
}
"""


def cases_of(text: str, folder: Path) -> tuple[list[Case], list[str]]:
    path = folder / "some_test.cc"
    path.write_text(text)
    found = list(Reader(path).read())
    return [case for _, cases, _ in found for case in cases], [why for _, _, why in found if why]


def test_plain_tests_are_read(tmp_path: Path) -> None:
    (case,), why = cases_of(PLAIN, tmp_path)
    assert not why  # a test that expects an error is read, and is no case
    assert (case.op, case.version, case.domain) == ("Abs", 13, "")
    array = case.inputs[0].array
    assert array is not None
    np.testing.assert_array_equal(array, np.array([[1, -2], [-0.5, 16]], np.float32))
    outcome = run_case(case)
    assert (outcome.verdict, outcome.how, outcome.confirmed) == ("right", "kernels", "")


def test_helpers_templates_and_loops_are_followed(tmp_path: Path) -> None:
    cases, why = cases_of(HELPERS, tmp_path)
    assert [case.op for case in cases] == ["Mul", "Mul", "Mul", "ReduceSum", "ReduceSum"]
    assert [case.version for case in cases[:3]] == [13, 13, 14]
    assert [case.inputs[1].constant for case in cases[:3]] == [False, True, True]
    wanted = cases[2].outputs[0].array
    assert wanted is not None and wanted.dtype == np.int64 and wanted.tolist() == [5, 10, 15]
    assert cases[3].attributes == {"keepdims": 0}
    assert [run_case(case).verdict for case in cases] == ["right"] * 5
    (reason,) = why
    assert "random" in reason


def test_a_wrong_expectation_is_wrong(tmp_path: Path) -> None:
    (case,), _ = cases_of(PLAIN.replace("0.5f, 16.0f", "0.5f, 16.1f"), tmp_path)
    outcome = run_case(case)
    assert outcome.verdict == "wrong" and "1 of 4 elements" in outcome.what
    assert outcome.confirmed  # ONNX Runtime does not give it either


def test_an_unknown_operator_is_refused(tmp_path: Path) -> None:
    (case,), _ = cases_of(PLAIN.replace('"Abs", 13', '"Abs", 1, kMSDomain'), tmp_path)
    assert case.domain == "com.microsoft"
    assert run_case(case).verdict == "refused"


def test_cases_are_stored_and_run(tmp_path: Path) -> None:
    path = tmp_path / "some_test.cc"
    path.write_text(PLAIN + PLAIN.replace("AbsTest", "Again"))
    reply = read_file(path, tmp_path)
    assert reply["tests"] == 4 and len(reply["cases"]) == 2
    row = run_stored(Path(reply["cases"][0]), "cpu", fusion=True, peer=True)
    assert row["verdict"] == "right" and row["op"] == "Abs"


def test_broken_text_is_no_crash(tmp_path: Path) -> None:
    cases, why = cases_of(PLAIN.replace("test.Run();", "test.Run(;"), tmp_path)
    assert not cases and why


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("defined(USE_CUDA)", True),
        ("!defined(USE_CUDA) || defined(OTHER)", False),
        ("SOME_VERSION >= 3", False),
        ("defined USE_CUDA && !defined(_WIN32)", True),
        ("1", True),
    ],
)
def test_conditions(text: str, value: bool) -> None:
    assert condition(text) is value


def test_tokens_know_their_line() -> None:
    tokens = tokenize('a /* b\n */ "x // y"\n#if 0\nhidden\n#else\nc\n#endif\n')
    assert [(token.text, token.line) for token in tokens] == [
        ("a", 1), ('"x // y"', 2), ("c", 6),
    ]  # fmt: skip
