"""Guards the report: all generated, honest at tiny, one file that asks nothing of any network."""

import base64
import json
import os
import re
import shutil
import subprocess

import pytest

from powerstep_repro.evidence import Evidence
from powerstep_repro.paper import CLAIMS, DEPARTURES
from powerstep_repro.report.__main__ import main as report
from powerstep_repro.report.document import document
from powerstep_repro.report.page import html
from powerstep_repro.report.provenance import device_hours, effects, total_tokens
from powerstep_repro.tables.catalogue import CATALOGUE


def some_runs(world):
    small = {"model": "gpt2_small"}
    facts = {"summary": {"world_size": 2, "versions": {"torch": "2.13.0"}}}
    world.add("small", small | {"optimizer": "adamw"}, losses=(4.15, 4.16), **facts)
    world.add("small", small | {"optimizer": "powerstep"}, losses=(4.50, 4.51), **facts)
    world.add("small", small | {"optimizer": "signsgd"}, losses=(None,), diverged_at=640)


def test_the_report_holds_claims_figures_tables_and_provenance(world):
    some_runs(world)
    text = document(Evidence(world.results, "h100"))
    assert "5 runs (4 finished, 1 diverged)" in text
    assert "- **not reproduced** (1 of 6 parts run): PowerStep ends within 0.028" in text
    for claim in CLAIMS:
        assert f"### {claim.name}: " in text
    assert "![Figure 2: Training loss across model scales](figures/small.png)" in text
    assert "Not run. `python -m powerstep_repro.sweep large profile=h100" in text
    assert text.count("\n### ") == len(CLAIMS) + 7 + len(CATALOGUE)
    for words in ("00aa11bb22cc33dd", "NVIDIA H100", "Version of torch", "2.13.0 (4 runs)"):
        assert words in text
    assert "0.8% of the tokens" in text  # what a short horizon cannot show
    assert "nan" not in text.lower().replace("nanogpt", "")


def test_totals_count_devices_and_tokens(world):
    some_runs(world)
    evidence = Evidence(world.results, "h100")
    # Four runs of 360 s on two devices, one on one.
    assert device_hours(evidence) == {"NVIDIA H100 80GB HBM3": pytest.approx(0.9)}
    assert total_tokens(evidence) == (4 * 1500 + 640) * 120 * 1024


def test_tiny_prints_no_verdicts(world):
    world.add("small", {"model": "gpt2_small"}, losses=(1.0, 1.1), profile="tiny", log_interval=20)
    text = document(Evidence(world.results, "tiny"))
    assert "This profile is a plumbing check" in text
    for verdict in ("**reproduced**", "**not reproduced**", "**inconclusive**"):
        assert verdict not in text
    assert ": reproduced" not in text


def test_nothing_run_is_a_report_too(world):
    text = document(Evidence(world.results, "h100"))
    assert "No run has been made in this profile." in text
    assert "No runs." in text


def test_the_effect_of_a_departure_is_that_of_twins(world):
    small = {"model": "gpt2_small"}
    world.add("small", small | {"optimizer": "adams"}, losses=(4.2, 4.3))
    world.add("small_released", {"optimizer": "adams_released"}, losses=(5.5, 5.6))
    elsewhere = {"overrides": ("lr=1e-3",)}  # another rate has no twin
    world.add("small_released", {"optimizer": "adams_released"}, losses=(9.9,), **elsewhere)
    departure = next(d for d in DEPARTURES if d.released == "adams_released")
    (effect,) = effects(departure, Evidence(world.results, "h100"))
    assert effect.setting == "GPT-2-Small (124M), lr 6e-4"
    assert (effect.released, effect.plain) == ("5.550 (n=2)", "4.250 (n=2)")
    assert effect.gap.mean == pytest.approx(1.3)


def test_a_departure_of_the_setup_is_found_by_its_value(world):
    powerstep = {"model": "gpt2_small", "optimizer": "powerstep"}
    world.add("small", powerstep, losses=(4.5,))
    world.add("small", powerstep, losses=(4.6,), overrides=("weight_decay_on=all",))
    departure = next(d for d in DEPARTURES if d.setting)
    (effect,) = effects(departure, Evidence(world.results, "h100"))
    assert (effect.released, effect.plain) == ("4.600 (n=1)", "4.500 (n=1)")


BENCHMARKS = {
    "optimizers-nvidia-h100-80gb-hbm3": {
        "device": "NVIDIA H100 80GB HBM3",
        "versions": {"torch": "2.13.0"},
        "time": "2026-01-01T00:00:00+00:00",
        "dtype": "fp32",
        "copy_bytes_per_s": 2.5e12,
        "rows": [
            {
                "model": "gpt2_small",
                "params": 124_373_760,
                "label": "powerstep (fused)",
                "ms": 0.934567,
                "ms_rounds": [0.93, 0.94],
                "extra_bytes": None,
            },
            {
                "model": "gpt2_small",
                "params": 124_373_760,
                "label": "a peer",
                "failed": "ImportError: no a|b",
            },
        ],
    },
    "training-nvidia-h100-80gb-hbm3": {
        "device": "NVIDIA H100 80GB HBM3",
        "rows": [
            {
                "model": "gpt2_small",
                "shape": {"n_layer": 12},
                "optimizer": "adamw",
                "compile": True,
                "who": "nanoGPT",
                "tokens_per_s": 512345.6,
                "mfu": 0.4321,
            }
        ],
    },
}


def test_benchmarks_are_shown_row_by_row(world):
    assert "measured side by side" not in document(Evidence(world.results, "h100"))
    (world.results / "bench").mkdir()
    for name, content in BENCHMARKS.items():
        (world.results / "bench" / f"{name}.json").write_text(json.dumps(content))
    text = document(Evidence(world.results, "h100"))
    lines = text[text.index("## Speed, measured side by side") :].splitlines()
    assert "### Benchmark: optimizers" in lines
    assert "device NVIDIA H100 80GB HBM3, time 2026-01-01T00:00:00+00:00, dtype fp32, " in text
    assert "| model | params | label | ms | extra bytes | failed |" in lines
    ours = "| gpt2_small | 124,373,760 | powerstep (fused) | 0.9346 | n/a | n/a |"
    peer = "| gpt2_small | 124,373,760 | a peer | n/a | n/a | ImportError: no a\\|b |"
    assert lines[lines.index(ours) + 1] == peer
    assert "| model | optimizer | compile | who | tokens per s | mfu |" in lines
    assert "| gpt2_small | adamw | yes | nanoGPT | 5.123e+05 | 0.4321 |" in lines


RERUN = {
    "run": "gpt2_small-powerstep-lr6e-04-s1337-150f6d9e62",
    "step": 200,
    "device": "NVIDIA H100 80GB HBM3",
    "same_card": True,
    "train_loss": [5.123456, 5.123458],
    "max_abs_diff": 3.5e-6,
    "mean_abs_diff": 1.25e-7,
    "first_differing_step": 12,
    "revisions": ["0123456789ab", "ba9876543210"],
}


def test_a_run_that_was_repeated_is_told_of(world):
    assert "Repeating a run" not in document(Evidence(world.results, "h100"))
    folder = world.results / "h100" / "reruns"
    folder.mkdir(parents=True)
    (folder / "first.json").write_text(json.dumps(RERUN))
    exact = {"first_differing_step": None, "max_abs_diff": 0.0, "mean_abs_diff": 0}
    other = RERUN | exact | {"same_card": False, "device": "NVIDIA H200"}
    (folder / "second.json").write_text(json.dumps(other))
    text = document(Evidence(world.results, "h100"))
    assert "2 recorded runs were started again from the same config, 1 of them on the same" in text
    assert "1 of 2 equal the record in every logged digit" in text
    assert (
        f"| {RERUN['run']} | NVIDIA H100 80GB HBM3 | 200 | 5.123456 | 5.123458 | 3.5e-06 "
        "| 1.2e-07 | 12 | 0123456789ab and ba9876543210 |" in text
    )
    assert "| NVIDIA H200 (another card) | 200 | 5.123456 | 5.123458 | 0 | 0 | none |" in text


@pytest.mark.parametrize("damage", ["{", "[]", '{"run": 1}', json.dumps(RERUN | {"step": None})])
def test_a_damaged_repetition_is_named(world, damage):
    folder = world.results / "h100" / "reruns"
    folder.mkdir(parents=True)
    (folder / "bad.json").write_text(damage)
    text = document(Evidence(world.results, "h100"))
    assert "## Repeating a run" not in text
    assert "bad.json tells of no repeated run" in text


@pytest.fixture(scope="module")
def page(make_world):
    """A written report of a few runs."""
    world = make_world("page")
    some_runs(world)
    assert report(["profile=h100", f"results_dir={world.results}"]) == 0
    return world.results / "h100" / "report.html"


def test_the_page_is_one_file_that_asks_for_nothing(page):
    text = page.read_text()
    sources = re.findall(r'(?:src|href)="([^"]*)"', text)
    assert all(s.startswith(("data:", "#")) for s in sources), sources
    assert not re.search(r"url\(|@import|<script|<iframe|https?://", text)
    pictures = [s for s in sources if s.startswith("data:image/png")]
    assert len(pictures) == text.count("<img ") == 6
    for picture in pictures:
        assert base64.b64decode(picture.partition(",")[2]).startswith(b"\x89PNG")
    assert 'name="viewport"' in text
    assert text.count("<table>") == text.count('<div class="box" tabindex="0">')
    assert (page.parent / "REPORT.md").exists()


def test_html_in_a_log_stays_text(tmp_path):
    assert "<script>" not in html("# A\n\n<script>alert(1)</script>", tmp_path)


def browser():
    """A headless Chromium, if one is installed."""
    names = ("chromium", "chromium-headless-shell", "chromium-browser", "google-chrome")
    return next((path for name in names if (path := shutil.which(name))), None)


# Measured by the page itself: nothing else can see the layout.
_PROBE = """<script>
window.onload = () => {
  const images = [...document.images];
  document.title = JSON.stringify({
    window: window.innerWidth, page: document.documentElement.scrollWidth,
    pictures: images.filter(i => i.complete && i.naturalWidth > 0).length, all: images.length,
    requests: performance.getEntriesByType('resource').map(r => r.name)
      .filter(n => !n.startsWith('data:')),
  });
  document.body.innerHTML = '<pre id="probe">' + document.title + '</pre>';
};
</script>"""


@pytest.mark.skipif(browser() is None, reason="no Chromium is installed")
def test_the_page_in_a_browser_of_390_pixels(page, tmp_path):
    """All pictures show, nothing scrolls sideways, no request leaves the page."""
    probed = tmp_path / "probed.html"
    # A frame gives the page a width below the smallest window that a browser opens.
    inner = page.read_text().replace("</body>", f"{_PROBE}</body>")
    probed.write_text(inner)
    outer = tmp_path / "frame.html"
    outer.write_text(
        f'<body style="margin:0"><iframe src="{probed.name}" '
        'style="width:390px;height:800px;border:0"></iframe></body>'
    )
    command = [browser(), "--headless", "--no-sandbox", "--disable-gpu"]
    command += ["--allow-file-access-from-files", f"--user-data-dir={tmp_path / 'profile'}"]
    command += ["--virtual-time-budget=10000", "--dump-dom", f"file://{outer}"]
    script = "<script>onload=()=>setTimeout(()=>{document.title=frames[0].document.title},500)"
    outer.write_text(outer.read_text().replace("</body>", f"{script}</script></body>"))
    environment = os.environ | {"HOME": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
    (title,) = re.findall(r"<title>(.*?)</title>", done.stdout)
    found = json.loads(title.replace("&quot;", '"'))
    assert found["window"] == 390
    assert found["page"] <= 390
    assert found["pictures"] == found["all"] == 6
    assert found["requests"] == []
