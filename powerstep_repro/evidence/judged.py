"""The paper's claims judged on a profile's runs, each by the judge that its ``kind`` names."""

from powerstep_repro.evidence import verdicts_other  # noqa: F401, its judges enter themselves
from powerstep_repro.evidence.cells import Evidence
from powerstep_repro.evidence.paper_check import on_paper
from powerstep_repro.evidence.statistics import overall
from powerstep_repro.evidence.verdicts import JUDGES, Judgement, majority
from powerstep_repro.evidence.words import NO_VERDICT
from powerstep_repro.paper import CLAIMS, Claim


def judge_all(evidence: Evidence) -> list[Judgement]:
    """Judge every claim of the paper."""
    return [judge_claim(claim, evidence) for claim in CLAIMS]


def judge_claim(claim: Claim, evidence: Evidence) -> Judgement:
    """Judge one claim; at ``tiny`` nothing is judged."""
    if evidence.profile == "tiny":
        return Judgement(claim, NO_VERDICT, [], on_paper(claim))
    items = JUDGES[claim.kind](claim, evidence)
    verdicts = [item.verdict for item in items]
    verdict = majority(items) if claim.kind == "majority" else overall(verdicts, claim.universal)
    return Judgement(claim, verdict, items, on_paper(claim))
