"""Data sets through the real ``datasets`` loader, from small local parquet and jsonl files."""

import gzip
import json
import math
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from nanogpt.data import TokenData
from powerstep_repro.config import compose
from powerstep_repro.data import resolve
from powerstep_repro.errors import UserError


def encode(documents):
    """Byte tokens of some documents, by hand."""
    return [token for text in documents for token in [*text.encode(), 256]]


@pytest.fixture(scope="session")
def parquet(tmp_path_factory, documents):
    folder = tmp_path_factory.mktemp("parquet")
    third = len(documents) // 3
    for number, part in enumerate((documents[:third], documents[third:])):
        table = pa.table({"text": part, "other": list(range(len(part)))})
        pq.write_table(table, folder / f"train-{number:05d}.parquet", row_group_size=16)
    held_out = pa.table({"text": ["kept out", "too"], "other": [0, 1]})
    pq.write_table(held_out, folder / "validation-0.parquet")
    return folder


@pytest.fixture(scope="session")
def jsonl(tmp_path_factory, documents):
    folder = tmp_path_factory.mktemp("jsonl")
    with (folder / "train.jsonl").open("w") as file:
        for text in documents:
            file.write(json.dumps({"body": text}) + "\n")
    return folder


def test_the_split_is_nanogpts(built, tmp_path, parquet, documents):
    data = built(tmp_path, "openwebtext", f"id={parquet}", "tokenizer=byte", "val_fraction=0.05")
    # nanoGPT shuffles by numpy's generator, seed 2357, and takes validation from the front.
    order = np.random.default_rng(2357).permutation(len(documents))
    held_out = math.ceil(0.05 * len(documents))
    assert data.val.tolist() == encode(documents[i] for i in order[:held_out])
    assert data.train.tolist() == encode(documents[i] for i in order[held_out:])
    assert data.name == "openwebtext"


@pytest.mark.parametrize("streaming", ["false", "true"])
def test_any_number_of_workers_gives_the_same_bytes(built, tmp_path, parquet, streaming):
    options = [f"id={parquet}", f"streaming={streaming}", "val_documents=9"]
    several = built(tmp_path / "3", "openwebtext", *options, "workers=3")
    one = built(tmp_path / "1", "openwebtext", *options, "workers=1")
    for name in ("train.bin", "val.bin", "meta.json"):
        assert (several.folder / name).read_bytes() == (one.folder / name).read_bytes()
    assert one.meta["tokenizer"] == "gpt2"
    assert list((tmp_path / "3").iterdir()) == [several.folder]


def test_streaming_keeps_the_sources_order(built, tmp_path, jsonl, documents):
    options = ["name=mine", "id=json", f"data_files={jsonl}/*.jsonl", "text_column=body"]
    options += ["streaming=true", "val_documents=10", "tokenizer=byte"]
    data = built(tmp_path, "openwebtext", *options)
    assert data.val.tolist() == encode(documents[:10])
    assert data.train.tolist() == encode(documents[10:])
    assert data.name == "mine"


@pytest.mark.parametrize("streaming", ["false", "true"])
def test_a_split_of_its_own_and_a_limit(built, tmp_path, parquet, documents, streaming):
    options = [f"id={parquet}", "config=null", "tokenizer=byte", f"streaming={streaming}"]
    data = built(tmp_path, "c4", *options, "max_tokens=1000")
    assert data.val.tolist() == encode(["kept out", "too"])
    assert data.train.tolist() == encode(documents)[:1000]


def test_a_large_vocabulary_goes_to_wide_files(built, tmp_path, jsonl, documents):
    words = {f"w{n}": n for n in range(70_000)} | {"<eos>": 70_000, "memory": 70_001}
    backend = Tokenizer(models.WordLevel(words, unk_token="w0"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    folder = tmp_path / "tokenizer"
    folder.mkdir()
    backend.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text('{"eos_token": "<eos>"}')
    options = [f"id={jsonl}", "text_column=body", f"tokenizer={folder}", "val_documents=20"]
    data = built(tmp_path / "data", "openwebtext", *options)
    assert data.train.dtype == np.uint32
    assert data.vocab_size == 70_002
    assert np.count_nonzero(data.train == 70_000) == len(documents) - 20
    assert data.train.max() == 70_001


def test_rows_without_a_text_are_left_out(built, tmp_path):
    with (tmp_path / "rows.jsonl").open("w") as file:
        for text in ("one", None, "two", "three", None, "four"):
            file.write(json.dumps({"text": text}) + "\n")
    options = ["id=json", f"data_files={tmp_path}/rows.jsonl", "val_documents=2", "tokenizer=byte"]
    data = built(tmp_path / "data", "openwebtext", *options)
    assert data.val.tolist() == encode(["one"])
    assert data.train.tolist() == encode(["two", "three", "four"])


def test_training_finds_what_its_own_sentence_tells_to_prepare(command, tmp_path, jsonl):
    overrides = ["data=openwebtext", f"data.id={jsonl}", "data.text_column=body"]
    overrides += ["data.tokenizer=byte", "data.val_fraction=0.1", f"data_dir={tmp_path / 'a b'}"]
    config = compose(overrides)
    with pytest.raises(UserError, match="is not prepared") as refused:
        resolve(config["data"], config["data_dir"])
    told = shlex.split(str(refused.value).partition("with: ")[2])
    assert told[:3] == ["python", "-m", "powerstep_repro.prepare"]
    code, said = command(*told[3:])
    assert (code, "tokenize" in said) == (0, True)
    assert resolve(config["data"], config["data_dir"]).vocab_size == 257
    # And once more: nothing to do.
    assert command(*told[3:])[0] == 0
    # What an interruption leaves is in the library's cache: it is not tokenized again.
    shutil.rmtree(resolve(config["data"], config["data_dir"]).folder)
    code, said = command(*told[3:])
    assert (code, "tokenize" in said) == (0, False)


def write_jsonl(path, texts):
    path.parent.mkdir(parents=True, exist_ok=True)
    content = "".join(json.dumps({"text": text}) + "\n" for text in texts).encode()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)


def test_added_shards_make_another_data_set(command, tmp_path):
    """Once the tokens of before: a folder's name held the options alone."""
    options = [f"id={tmp_path / 'corpus'}", "tokenizer=byte", "val_documents=1"]
    options += [f"data_dir={tmp_path / 'data'}"]
    write_jsonl(tmp_path / "corpus" / "a.jsonl", ["one", "two"])
    found = []
    for changed in (None, "b.jsonl", "a.jsonl"):
        if changed:
            write_jsonl(tmp_path / "corpus" / changed, ["drei", "vier"])
        config = compose(["data=openwebtext", *(f"data.{each}" for each in options[:-1])])["data"]
        with pytest.raises(UserError, match="is not prepared"):
            resolve(config, tmp_path / "data")
        assert command("openwebtext", *options)[0] == 0
        found.append(resolve(config, tmp_path / "data").train.tolist())
    first, second, third = found
    assert first == encode(["two"])
    assert second == encode(["two", "drei", "vier"])
    assert third == encode(["vier", "drei", "vier"])


def test_a_place_of_its_own(command, tmp_path, jsonl):
    options = [f"id={jsonl}", "text_column=body", "tokenizer=byte", f"path={tmp_path}/mine"]
    assert command("openwebtext", *options, "val_fraction=0.1")[0] == 0
    # Found by its place alone, whatever else the config says.
    config = compose(["data=openwebtext", f"data.path={tmp_path}/mine"])
    assert resolve(config["data"], tmp_path).folder == tmp_path / "mine"
    assert resolve(config["data"], tmp_path).vocab_size == 257


def test_two_projects_with_a_corpus_each_have_their_own_tokens(offline, tmp_path):
    code = (
        "import sys; from powerstep_repro.prepare import main;"
        "sys.exit(main(['openwebtext', 'id=corpus', 'tokenizer=byte', 'val_documents=1',"
        "'data_dir=../data']))"
    )
    for project, text in (("one", "a"), ("other", "b")):
        write_jsonl(tmp_path / project / "corpus" / "a.jsonl", ["held out", text])
        os.utime(tmp_path / project / "corpus" / "a.jsonl", ns=(1, 1))
        path = {"PYTHONPATH": os.getcwd()}
        where = tmp_path / project
        subprocess.run([sys.executable, "-c", code], cwd=where, env=offline | path, check=True)
    folders = (tmp_path / "data").iterdir()
    assert sorted(TokenData.open(each).train.tolist() for each in folders) == [
        encode(["a"]),
        encode(["b"]),
    ]


def cut_gzip(folder):
    content = gzip.compress(os.urandom(5000))
    (folder / "b.jsonl.gz").write_bytes(content[: len(content) // 2])


def bad_line(folder):
    (folder / "b.jsonl").write_bytes(b'{"text": "fine"}\n{"text": cut\n')


def bad_parquet(folder):
    (folder / "a.jsonl").unlink()
    (folder / "b.parquet").write_bytes(b"PAR1 and nothing else")


def empty_shard(folder):
    (folder / "b.jsonl").touch()


def empty_gzip(folder):
    write_jsonl(folder / "b.jsonl.gz", [])


def missing_shard(folder):
    for number in (0, 2):
        write_jsonl(folder / f"part-{number:05d}-of-00003.jsonl", ["text"])


@pytest.mark.parametrize("streaming", ["false", "true"])
@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (cut_gzip, "b.jsonl.gz cannot be read: "),
        (bad_line, "b.jsonl cannot be read: "),
        (bad_parquet, "b.parquet cannot be read: Parquet magic bytes not found"),
        (empty_shard, "b.jsonl is empty: fetch or remove it"),
        (empty_gzip, "b.jsonl.gz is empty: fetch or remove it"),
        (missing_shard, "lacks 1 of 3 shards, such as .*/part-00001-of-00003.jsonl: fetch them"),
    ],
)
def test_a_damaged_corpus_is_said_to_be_damaged_and_where(
    command, tmp_path, damage, sentence, streaming
):
    """Once "cannot be found", or nothing at all."""
    write_jsonl(tmp_path / "corpus" / "a.jsonl", ["good", "text"] * 20)
    damage(tmp_path / "corpus")
    options = [f"id={tmp_path / 'corpus'}", "tokenizer=byte", "val_documents=1"]
    options += [f"data_dir={tmp_path / 'data'}", f"streaming={streaming}"]
    code, _ = command("openwebtext", *options)
    assert isinstance(code, str)
    assert re.search(sentence, code), code
    assert "\n" not in code
    assert not list((tmp_path / "data").glob("*"))


def test_a_new_data_set_is_one_file_of_five_lines(offline, tmp_path):
    """As a newcomer does it, in a clone, with a folder of parquet in place of a hub's id."""
    for name in ("conf", "sweeps", "nanogpt", "powerstep_repro"):
        shutil.copytree(name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy("pyproject.toml", tmp_path)
    (tmp_path / "mine").mkdir()
    pq.write_table(
        pa.table({"body": [f"document {n}" for n in range(50)]}), tmp_path / "mine/a.parquet"
    )
    (tmp_path / "conf" / "data" / "mine.yaml").write_text(
        "defaults: [openwebtext, _self_]\n"
        "name: mine\n"
        "id: ./mine\n"
        "text_column: body\n"
        "val_fraction: 0.1\n"
    )
    environment = offline | {"PYTHONPATH": str(tmp_path)}

    def run(*arguments):
        command = [sys.executable, *arguments]
        return subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True
        )

    find = "from powerstep_repro.config import compose; from powerstep_repro.data import resolve;"
    find += "print(len(resolve(compose(['data=mine', 'model=gpt2_small'])['data'], 'data').val))"
    before = run("-c", find)
    assert "is not prepared" in before.stderr
    told = shlex.split(before.stderr.strip().partition("with: ")[2])
    assert told == ["python", "-m", "powerstep_repro.prepare", "mine"]
    prepared = run(*told[1:])
    assert prepared.returncode == 0, prepared.stderr
    assert "mine: " in prepared.stdout
    assert run("-c", find).returncode == 0


@pytest.mark.parametrize("streaming", ["false", "true"])
@pytest.mark.parametrize("given", ["folder", "files"])
def test_odd_paths_are_read_and_told_as_they_stand(command, tmp_path, given, streaming):
    odd = tmp_path / "a=b ~#([1],é)"
    write_jsonl(odd / "corpus" / "a.jsonl", ["held out", "text"])
    where = [f"id={odd / 'corpus'}"]
    if given == "files":
        where = ["id=json", f"data_files={odd / 'corpus' / 'a.jsonl'}"]
    options = [*where, "tokenizer=byte", "val_documents=1", f"streaming={streaming}"]
    config = compose(
        ["data=openwebtext", *(f"data.{each}" for each in options), f"data_dir={odd / 'data'}"]
    )
    with pytest.raises(UserError, match="is not prepared") as refused:
        resolve(config["data"], config["data_dir"])
    told = shlex.split(str(refused.value).partition("with: ")[2])
    code, said = command(*told[3:])
    assert code == 0, (code, said)
    assert resolve(config["data"], odd / "data").train.tolist() == encode(["text"])
    assert os.listdir(tmp_path) == [odd.name]


@pytest.mark.parametrize("kind", ["text", "tokens"])
def test_odd_paths_of_text_and_tokens(command, tmp_path, kind):
    odd = tmp_path / "a=b ~#([1],é)"
    odd.mkdir()
    for name in ("train.bin", "val.bin"):
        (odd / name).write_text("some text\n" * 20)
    code, said = command(kind, f"path={odd}", f"data_dir={odd / 'data'}")
    assert code == 0, (code, said)
    assert os.listdir(tmp_path) == [odd.name]


@pytest.mark.parametrize(
    ("sent", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["SIGINT", "SIGTERM"]
)
def test_an_interrupted_preparation_leaves_nothing(offline, tmp_path, sent, code):
    write_jsonl(tmp_path / "corpus" / "a.jsonl", ["some words to tokenize"] * 400)
    program = (  # it says when the first file is written, and then takes its time
        "import os, time; from powerstep_repro.errors import exit_on_user_error\n"
        "from powerstep_repro.prepare import main\n"
        "os.fsync = lambda file: (print('written', flush=True), time.sleep(60))\n"
        "exit_on_user_error(main)"
    )
    options = [f"id={tmp_path / 'corpus'}", "val_documents=1", "workers=2"]
    process = subprocess.Popen(
        [sys.executable, "-c", program, "openwebtext", *options, f"data_dir={tmp_path / 'data'}"],
        env=offline,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    assert process.stdout.readline() == b"written\n"
    for _ in range(5):  # Python loses what a handler raises while it cleans up after an object
        if sent == signal.SIGINT:  # as Ctrl-C does: to the whole group
            os.killpg(process.pid, sent)
        else:
            process.send_signal(sent)
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=8)
            break
    assert process.returncode in (code, -sent)  # the same to a shell
    assert list((tmp_path / "data").iterdir()) == []
    with suppress(ProcessLookupError):  # the system takes a moment to bury the last worker
        for _ in range(100):
            os.killpg(process.pid, 0)
            time.sleep(0.1)
        pytest.fail("a worker is left to wait for ever")


def test_a_disk_that_fills_up(tmp_path):
    # Files cannot grow beyond 20,000 bytes: the write fails as on a full disk.
    (tmp_path / "text.txt").write_text("words and words\n" * 3000)
    code = (
        "import resource, sys; from powerstep_repro.errors import exit_on_user_error\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv.pop(1)), -1))\n"
        "from powerstep_repro.prepare import main; exit_on_user_error(main)"
    )
    arguments = ["text", f"path={tmp_path}/text.txt", f"data_dir={tmp_path}/data"]

    def prepare(limit):
        return subprocess.run(
            [sys.executable, "-c", code, limit, *arguments], capture_output=True, text=True
        )

    full = prepare("20000")
    assert full.returncode == 1
    assert full.stderr.startswith("error: ")
    assert "train.bin cannot be written: [Errno 27] File too large" in full.stderr
    assert full.stderr.count("\n") == 1
    assert list((tmp_path / "data").iterdir()) == []
    assert prepare("-1").returncode == 0


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["text_column=body"], "has no column 'body'"),
        (["text_column=other"], "holds .* which is no text"),
        (["split=elsewhere"], 'it cannot be prepared: Unknown split "elsewhere"'),
        (["streaming=true", "val_documents=null"], "streaming=true needs val_split=NAME"),
        (
            ["val_documents=100000"],
            "val_documents=100000 leaves nothing of 203 documents: it must be",
        ),
        (["workers=0"], "data.workers must be a whole number from 1"),
        (["max_tokens=0"], "data.max_tokens must be a whole number from 1"),
        (["id=parquet", "data_files=/no/such/*.parquet"], "matches no file"),
        (["id=/no/such/folder"], "id=/no/such/folder is no folder"),
        (["id=nobody/nothing"], "nobody/nothing: it cannot be prepared: .*Hub"),
        (["tokenizer=nobody/nothing"], "tokenizer 'nobody/nothing' is not to be had"),
        (["colunm=x"], "unknown key 'colunm'"),
    ],
)
def test_bad_options_end_in_a_sentence_and_leave_nothing(
    command, tmp_path, parquet, arguments, sentence
):
    base = [f"id={parquet}", "tokenizer=byte", "val_documents=10", f"data_dir={tmp_path}"]
    code, _ = command("openwebtext", *base, *arguments)
    assert isinstance(code, str)
    assert "\n" not in code
    assert re.search(sentence, code)
    assert not [path for path in tmp_path.iterdir() if path.name[0] != "."]


def test_a_forgotten_name_is_said_to_be_missing(command, tmp_path):
    code, _ = command(f"data_dir={tmp_path}", "workers=1")
    assert f"name of the data set is missing: before 'data_dir={tmp_path}' write one of" in code
    assert "builtin, c4, openwebtext, text, tokens" in code


def test_c4_takes_the_models_own_tokenizer(command, tmp_path):
    code, _ = command("c4", "model=deepseek_v2_lite", f"data_dir={tmp_path}")
    assert "tokenizer 'deepseek-ai/DeepSeek-V2-Lite' is not to be had" in code


def test_without_a_network_it_says_so_within_seconds(offline, tmp_path):
    # A hub that refuses connections; its own clients would try for 23 seconds.
    environment = {**offline, "HF_HUB_OFFLINE": "0", "HF_ENDPOINT": "http://127.0.0.1:9"}
    environment["no_proxy"] = "127.0.0.1"
    start = time.process_time(), time.monotonic()
    ended = subprocess.run(
        [sys.executable, "-m", "powerstep_repro.prepare", "openwebtext", f"data_dir={tmp_path}"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ended.returncode == 1
    assert ended.stderr.startswith("error: dataset 'dylanebert/openwebtext' cannot be reached")
    assert ended.stderr.count("\n") == 1
    assert time.monotonic() - start[1] < 15
