"""How tools fared over many tasks: the pages of the api, added up."""

from outlive.infra.questions import Questions
from outlive.protocol import api


async def collect(questions: Questions, kind: str | None = None, within: float | None = None) -> api.StatsPage:
    """Ask for all pages and add them up. Raises like `Questions.ask`.

    Args:
        questions: whom to ask.
        kind: only tasks of this kind.
        within: only tasks created within the last so many seconds; None = all there are.
    """
    tools: dict[str, api.ToolStats] = {}
    tasks, after, first = 0, None, True
    while first or after is not None:
        question = api.Stats(kind=kind, within=within, after=after)
        page = await questions.ask("stats", question, api.StatsPage)
        for tool in page.tools:
            tools[tool.name] = _added(tools[tool.name], tool) if tool.name in tools else tool
        tasks, after, first = tasks + page.tasks, page.after, False
    return api.StatsPage(tools=[tools[name] for name in sorted(tools)], tasks=tasks)


def _added(one: api.ToolStats, other: api.ToolStats) -> api.ToolStats:
    errors = {name: one.errors.get(name, 0) + other.errors.get(name, 0) for name in {**one.errors, **other.errors}}
    return api.ToolStats(
        name=one.name, calls=one.calls + other.calls, succeeded=one.succeeded + other.succeeded,
        failed=one.failed + other.failed, unknown=one.unknown + other.unknown, open=one.open + other.open,
        attempts=one.attempts + other.attempts, errors=errors, waited=one.waited + other.waited,
        longest_wait=max(one.longest_wait, other.longest_wait),
    )  # fmt: skip
