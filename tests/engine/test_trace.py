import io
from pathlib import Path

import pytest

from engine.errors import EngineError
from engine.experts.trace import Geometry, Recorder, Routing, read_trace
from engine.meter import Phase
from tests.helpers.tiny import session_on, write_mixtral

ROUTES = Path(__file__).parents[3] / "shared" / "data" / "routes"
HEAD = (
    "# route_trace v1\n# model=m n_layer=2 n_expert=8 n_expert_used=2\n# layer=0 expert_bytes=10\n# layer=1 expert_bytes=20\n"
)
COLUMNS = "turn,phase,step,layer,slot,expert,weight\n"
ROWS = "0,1,7,0,0,3,0.6\n0,1,7,0,1,5,0.4\n"  # lines 6 and 7


def write(tmp_path: Path, content: str | bytes) -> Path:
    path = tmp_path / "trace.csv"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


@pytest.mark.skipif(not ROUTES.is_dir(), reason="the published traces are not here (../shared/data/routes)")
@pytest.mark.parametrize(
    ("name", "layers", "top_k", "decoded_steps", "first"),
    [("qwen", 48, 6, 128, (49, 19, 58, 29, 16, 70)), ("gptoss", 36, 2, 64, None)],
)
def test_published_traces_are_read_whole(
    name: str, layers: int, top_k: int, decoded_steps: int, first: tuple[int, ...] | None
) -> None:
    path = ROUTES / f"{name}.route.csv"
    trace = read_trace(path)
    assert (len(trace.geometry.layers), trace.geometry.num_experts, trace.geometry.top_k) == (layers, 128, top_k)
    rows = sum(line[:1].isdigit() for line in path.read_text().splitlines())
    assert len(trace.routings) * top_k == rows
    assert len(trace.decoded()) == decoded_steps * layers
    if first:
        assert trace.routings[0].experts == first
        assert trace.geometry.expert_bytes[6] == 2_654_208


def test_what_is_recorded_is_read_back(tmp_path: Path) -> None:
    geometry = Geometry("two words", 8, 2, {1: 10, 3: 20})
    file = io.StringIO()
    recorder = Recorder(file, geometry)
    recorder.begin(4, Phase.PREFILL, 10)
    for layer in geometry.layers:
        recorder.add(layer, [[layer, 7], [0, 2]], [[0.75, 0.25], [0.5, 0.5]])
    recorder.begin(4, Phase.DECODE, 12)
    recorder.add(1, [[6, 5]], [[1.0, -2.5e-7]])
    trace = read_trace(write(tmp_path, file.getvalue()))
    assert trace.geometry == Geometry("two_words", 8, 2, {1: 10, 3: 20})
    prompt = [(10, 1, (1, 7)), (11, 1, (0, 2)), (10, 3, (3, 7)), (11, 3, (0, 2))]
    assert [(one.step, one.layer, one.experts) for one in trace.routings[:4]] == prompt
    assert trace.decoded() == (Routing(4, Phase.DECODE, 12, 1, (6, 5), (1.0, -2.5e-7)),)


def test_columns_are_found_by_name_and_others_skipped(tmp_path: Path) -> None:
    rows = "x,0.6,3,0,0,7,1,0\nx,0.4,5,1,0,7,1,0\n"
    trace = read_trace(write(tmp_path, HEAD + "note,weight,expert,slot,layer,step,phase,turn\n\r\n" + rows))
    assert trace.routings == (Routing(0, Phase.DECODE, 7, 0, (3, 5), (0.6, 0.4)),)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("", "an empty file: the columns' names are not there"),
        (HEAD, "line 4: the columns' names are not there"),
        (HEAD + COLUMNS, "line 5: there is no routing in it"),
        (HEAD + "turn,phase,step,layer\n0,1,7,0\n", "line 5: the columns slot, expert, weight are not there"),
        (COLUMNS + ROWS, "line 1: n_expert is not given"),
        (HEAD.replace("used=2", "used=9") + COLUMNS + ROWS, "line 5: 9 of 8 experts per token is no model"),
        (HEAD.replace("n_expert=8", "n_expert=999999999") + COLUMNS + ROWS, "2 of 999999999 experts per token is no model"),
        (HEAD.replace("=10", "=-1") + COLUMNS + ROWS, "line 3: expert_bytes is '-1', not a count"),
        (HEAD.split("# layer")[0] + COLUMNS + ROWS, "line 3: no line above says expert_bytes"),
        (HEAD + COLUMNS + ROWS[:-6], "line 7: there are 6 columns of 7"),
        (HEAD + COLUMNS + ROWS[:16], "line 6: only 1 of top-2 are there"),
        (HEAD + COLUMNS + ROWS.replace("0,1,7,0,1", "0,1,8,0,1"), "line 7: this should be rank 1 of step 7, layer 0"),
        (HEAD + COLUMNS + ROWS.replace(",5,", ",8,"), "line 7: expert 8 is not among 8"),
        (HEAD + COLUMNS + ROWS.replace(",5,", f",{'9' * 5000},"), "line 7: expert is '99999999999999999999', not a count"),
        (HEAD + COLUMNS + ROWS.replace(",5,", ",-1,"), "line 7: expert is '-1', not a count"),
        (HEAD + COLUMNS + ROWS.replace(",5,", ",3,"), "line 7: an expert is chosen twice"),
        (HEAD + COLUMNS + ROWS.replace("7,0,", "7,2,"), "line 7: layer 2 is not among the 2 layers"),
        (HEAD + COLUMNS + ROWS.replace("0,1,7", "0,2,7"), "line 7: phase 2 is neither"),
        (HEAD + COLUMNS + ROWS.replace("0.4", "nan"), "line 7: the weight 'nan' is not a number"),
        (HEAD.encode() + COLUMNS.encode() + b"\xff\x00", "not a text file"),
    ],
)
def test_a_hostile_file_is_one_sentence_with_its_line(tmp_path: Path, content: str | bytes, sentence: str) -> None:
    with pytest.raises(EngineError) as caught:
        read_trace(write(tmp_path, content))
    assert sentence in caught.value.text
    assert caught.value.hint


def test_a_path_that_is_no_file_is_one_sentence(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "absent.csv"):
        with pytest.raises(EngineError, match=r"cannot be read"):
            read_trace(path)


def test_a_session_records_every_layer_of_every_token_once(tmp_path: Path) -> None:
    """Two requests of a tiny model: prompt and decode are told apart, and every layer of every token is there once."""
    folder = write_mixtral(tmp_path / "model")
    with session_on(folder, 4) as (session, _), (tmp_path / "trace.csv").open("w") as file:
        session.recorder = Recorder(file, Geometry("model", 8, 2, dict.fromkeys(range(3), 9216)))
        for prompt in ([5, 6, 7, 8], [9, 10]):
            session.sync(prompt)
            for token in range(20, 26):
                session.step(token)
    trace = read_trace(tmp_path / "trace.csv")
    assert len(trace.routings) == 3 * (4 + 6 + 2 + 6)
    decoded = trace.decoded()
    assert [routing.layer for routing in decoded] == [0, 1, 2] * 12
    assert [(routing.request, routing.step) for routing in decoded[::3]] == [
        *((0, step) for step in range(4, 10)),
        *((1, step) for step in range(2, 8)),
    ]
    assert all(abs(sum(routing.weights) - 1) < 1e-4 for routing in trace.routings)
