"""A reviewer of contracts: one item of the plan for each, read side by side; what a clause leaves open is asked of a person."""

import re
from pathlib import Path
from typing import Final

import msgspec

from outlive.actors.app import App
from outlive.actors.examples import folder, models
from outlive.actors.examples.scripted import Choices, Seen, items

SAMPLES: Final = Path(__file__).parent / "samples"
"""Three made-up contracts, reviewed where no folder is named."""

ACCEPT: Final = "accept"
FLAG: Final = "flag"

_CLAUSE: Final = re.compile(r"^(\d+)\.\s+([^\n.]+)\.?\s*$", re.MULTILINE)
_UNCLEAR: Final = re.compile(r"to be agreed|reasonable (?:time|notice|efforts)|\[\s*\]|_{3,}|TBD", re.IGNORECASE)
_RISKS: Final = {
    "liability is unlimited": re.compile(r"unlimited|without limit", re.IGNORECASE),
    "it renews by itself": re.compile(r"renews? automatically|automatically renew", re.IGNORECASE),
    "one side may change the terms alone": re.compile(r"sole discretion|at any time without notice", re.IGNORECASE),
}

app = App("contracts")


class Clause(msgspec.Struct, frozen=True):
    """A numbered clause."""

    number: int
    title: str
    text: str


class Contract(msgspec.Struct, frozen=True):
    """A contract, clause by clause."""

    name: str
    clauses: list[Clause]


class Finding(msgspec.Struct, frozen=True):
    """Something in a clause that should not be signed unread; `answer` is what a person said of it."""

    contract: str
    clause: int
    concern: str
    answer: str = ""


class Review(msgspec.Struct, frozen=True):
    """What came of it."""

    contracts: int
    findings: list[Finding]
    report: str


@app.tool(read_only=True, title="list the contracts")
def list_contracts() -> list[str]:
    """List the contracts of the folder (text files)."""
    return folder.names(".txt")


@app.tool(read_only=True, title="read {name}")
def read_contract(name: str) -> Contract:
    """Read a contract, clause by clause."""
    text = folder.text_of(name)
    heads = list(_CLAUSE.finditer(text))
    ends = [*(head.start() for head in heads[1:]), len(text)]
    clauses = [
        Clause(int(head[1]), head[2], " ".join(text[head.end() : end].split()))
        for head, end in zip(heads, ends, strict=True)
    ]
    return Contract(name, clauses or [Clause(1, "whole text", " ".join(text.split()))])


@app.tool(idempotent=True, title="write {name}")
def write_review(name: str, markdown: str) -> str:
    """Write the review, a Markdown file; returns its path."""
    return folder.write_result(name, markdown)


def decide(seen: Seen) -> Choices:
    """Decide as a careful clerk would: read all, ask what is unclear, one question at a time, then report."""
    if not seen.plan:
        return [items(("list", "see which contracts there are"))]
    if again := [*seen.forgotten("list_contracts"), *seen.forgotten("read_contract"), *seen.forgotten("ask_person")]:
        return again
    listed: list[list[str]] = seen.values("list_contracts", list[str])
    if not listed:
        return [("list_contracts", {"plan_item": "list"})]
    names = {f"c{n}": name for n, name in enumerate(listed[0], 1)}
    if "report" not in seen.plan:
        each = [(id_, f"review {name}") for id_, name in names.items()]
        return [items(("list", "see which contracts there are"), *each, ("report", "write the review"),
                      after={"report": list(names)})]  # fmt: skip
    contracts: list[Contract] = seen.values("read_contract", Contract)
    read = {contract.name for contract in contracts}
    if missing := [(id_, name) for id_, name in names.items() if name not in read]:
        return [("read_contract", {"name": name, "plan_item": id_}) for id_, name in missing[:16]]
    open_ = [
        (contract.name, clause) for contract in contracts for clause in contract.clauses if _UNCLEAR.search(clause.text)
    ]
    answers = [result.text for result in seen.of("person")]
    if len(answers) < len(open_):
        name, clause = open_[len(answers)]
        asked = f"{name}, clause {clause.number} ({clause.title}): {_sentence(clause.text)!r} Is that acceptable?"
        return [("ask_person", {"question": asked, "choices": [ACCEPT, FLAG]})]
    findings = [*_risks(contracts), *_left_open(open_, answers)]
    if not (written := [result for result in seen.of("write_review") if result.ok]):
        return [("write_review", {"name": "review.md", "markdown": report(contracts, findings), "plan_item": "report"})]
    output = Review(len(contracts), findings, written[-1].text)
    return [("finish", {"output": msgspec.to_builtins(output)})]


def _sentence(text: str) -> str:
    """Return the sentence that leaves something open."""
    return next(part for part in re.split(r"(?<=[.;])\s+", text) if _UNCLEAR.search(part))


def _risks(contracts: list[Contract]) -> list[Finding]:
    return [
        Finding(contract.name, clause.number, concern)
        for contract in contracts
        for clause in contract.clauses
        for concern, pattern in _RISKS.items()
        if pattern.search(clause.text)
    ]


def _left_open(open_: list[tuple[str, Clause]], answers: list[str]) -> list[Finding]:
    return [
        Finding(name, clause.number, f"it leaves open: {_sentence(clause.text)}", answer)
        for (name, clause), answer in zip(open_, answers, strict=False)
        if answer != ACCEPT
    ]


def report(contracts: list[Contract], findings: list[Finding]) -> str:
    """Write the script's review."""
    parts = [f"# Review of {len(contracts)} contracts\n"]
    for contract in contracts:
        mine = [finding for finding in findings if finding.contract == contract.name]
        parts.append(f"## {contract.name}, {len(contract.clauses)} clauses\n")
        parts += [f"- clause {each.clause}: {each.concern}" for each in mine] or ["Nothing to remark."]
        parts.append("")
    return "\n".join(parts)


reviewer = app.agent(
    "reviewer",
    instructions=(
        "You review contracts for a careful buyer. List them, make a plan with an item for each contract and one for the "
        "review, read them side by side, and look for unlimited liability, silent renewal, terms that one side may "
        "change alone. Where a clause leaves something open that matters, ask a person, one question for one clause. "
        "Write the review with write_review (review.md), and finish."
    ),
    tools=[list_contracts, read_contract, write_review],
    output=Review,
    description="Reviews the contracts in the worker's folder.",
    context_tokens=48_000,
    **models.chosen(decide),
)
GOAL: Final = "Review all contracts of the folder."
