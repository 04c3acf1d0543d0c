"""An agent's durable function: decide, carry out, again, until the work is done. `Run.run` is the main flow.

    decide      the facts so far, under a budget, are put to the model; its answer is checked and recorded
    adopt       a plan or its revision becomes a fact
    carry out   the calls run as any step does: with intent, approval, recovery
    ask         a question goes to a person; so does a model that repeats itself or gives nothing of use
    finish      the output, checked against its type, is the task's result

Everything that the next decision rests on is made of recorded facts, so a resumed run decides nothing again. Nothing
here is kept between incarnations.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, cast

import msgspec

from outlive.actors import planning
from outlive.actors.agents import models, reading
from outlive.actors.agents.agent import Agent
from outlive.actors.agents.brakes import Brakes
from outlive.actors.agents.context import PERSON, Context, Done, Situation, compose
from outlive.actors.agents.decision import Decision
from outlive.actors.agents.decisions import Call, Decided, Outline, Question, Recall, Usage
from outlive.actors.agents.models import Answer, Offer
from outlive.actors.agents.reading import Ability
from outlive.actors.agents.spending import Spending
from outlive.actors.agents.versions import STOP, Changes, Ended, Version
from outlive.actors.history import call_text
from outlive.actors.step import ToolStep
from outlive.actors.task import Task, flow_of
from outlive.actors.waiting import Child
from outlive.protocol import codec
from outlive.protocol.errors import StepFailed, TaskCancelled, TaskFailed
from outlive.protocol.tools import Kind, Operation

AGAIN: Final = "ask again"

RESULT: Final = 1_000_000
"""Characters of a result that an agent can look at; `recall` pages through them."""


class Run:
    """One incarnation of an agent's task: what it knows is rebuilt from the record."""

    def __init__(self, agent: Agent, task: Task, goal: str) -> None:
        """Begin at the first decision."""
        self._agent = agent
        self._task = task
        self._flow = flow_of(task)
        self._goal = goal
        self._done: list[Done] = []
        self._by_step: dict[str, Done] = {}
        self._items: dict[str, bool] = {}  # by item: how its last step ended
        self._notes: list[str] = []
        self._recalls: Sequence[Recall] = ()
        self._brakes = Brakes(failures=agent.same_failures, idle=agent.idle_decisions)
        self._last: Version | None = None  # what the last decision was made with
        self._changes = Changes(self._flow, agent.on_change, agent.version, agent.configured, agent.prompt_of)
        self._spending = Spending(self._flow.world.budgets, self._flow.claim, agent.budget, agent.prices)
        self._decisions = 0
        self._unusable = 0

    async def run(self) -> Any:
        """Work until the model says that it is done, and return the output."""
        await self._spending.begin()
        while True:
            try:
                decided = await self._decide()
            except Ended:
                raise
            except StepFailed as failed:
                await self._unanswered(failed)
                continue
            self._notes, self._recalls = list(decided.problems), decided.recalls
            if decided.plan is not None:
                self._adopt(decided)
            if decided.calls:
                await self._carry_out(decided.calls)
            if decided.question is not None:
                await self._ask(decided.question)
            if decided.finished:
                return self._output(decided)
            await self._mind(decided)

    # --- decide

    async def _decide(self) -> Decided:
        """Put the facts to the model, once: a recorded decision is answered from the record."""
        self._decisions += 1
        self._brakes.decided()
        self._edited()
        recorded = self._flow.history.done.get(self._flow.next_place)
        before = self._last or self._changes.begun(self._flow.next_place)
        version = await self._changes.settle(self._decisions, before, recorded=recorded is not None)
        step_id = self._flow.place()
        context = self._context() if recorded is None else Context("", Outline())
        rules = self._rules()

        async def ask(op: Operation, **__: Any) -> Decided:
            return await self._put(context, rules, version, self._words(step_id, op.attempt))

        tool = self._agent.asking(ask)
        bound = tool.bind((), {
            "number": self._decisions, "model": version.model, "prompt": version.prompt, "request": context.outline,
        })  # fmt: skip
        decision = Decision(
            self._flow, step_id, tool, bound, before=before, spending=self._spending, tools=self._agent.tools,
            most=Usage(input=context.outline.tokens, output=self._agent.output_tokens),
        )  # fmt: skip
        decided = await decision
        await decision.settle(decided.model, decided.usage)
        told = decided.instructions or (self._last.instructions if self._last is not None else "")
        self._last = Version(decided.model, decided.prompt, told)
        return decided

    def _context(self) -> Context:
        return compose(
            Situation(
                goal=self._goal, done=self._done, by_step=self._by_step, notes=self._notes, recalls=self._recalls,
                plan_version=self._flow.plan.version if self._flow.plan else 0, plan=self._shown_plan(),
                fixed=self._agent.fixed + self._agent.naming(self._items_of_plan()),
            ),
            self._agent.context_tokens,
        )  # fmt: skip

    def _words(self, step_id: str, attempt: int) -> Callable[[str], None] | None:
        """Pass on what the model writes, where the agent wants that: nothing of it is a fact."""
        if not self._agent.stream:
            return None
        claim, announcer, numbers = self._flow.claim, self._flow.world.announcer, itertools.count(1)
        return lambda text: announcer.tokens(claim, step_id, attempt, next(numbers), text) if text else None

    async def _put(
        self, context: Context, rules: reading.Rules, version: Version, words: Callable[[str], None] | None
    ) -> Decided:
        """Make the request, and keep of its answer what can be used."""
        agent = self._agent
        answer: Answer = await models.ask(
            agent.resolve(version.model), version.instructions, context.text, self._offers(), mode=agent.mode,
            settings={"max_tokens": agent.output_tokens, **agent.settings}, words=words,
        )  # fmt: skip
        found = reading.read([(chosen.name, chosen.arguments) for chosen in answer.chosen], answer.text, rules)
        return Decided(
            calls=found.calls, plan=found.plan, why=found.why, question=found.question, recalls=found.recalls,
            finished=found.finished, output=found.output, problems=found.problems, model=version.model,
            reported=answer.reported, prompt=version.prompt, usage=answer.usage,
            instructions=None if self._last is not None and self._last.same(version) else version.instructions,
        )  # fmt: skip

    def _offers(self) -> list[Offer]:
        return self._agent.offers(self._items_of_plan(), planned=self._flow.plan is not None, recall=bool(self._done))

    def _rules(self) -> reading.Rules:
        return reading.Rules(
            tools=self._agent.tools, output=self._agent.output, plan=self._flow.plan,
            reached=frozenset(item for item, ok in self._items.items() if ok), steps=self._by_step, needs_plan=self._agent.plans,
        )  # fmt: skip

    # --- the plan

    def _adopt(self, decided: Decided) -> None:
        if self._flow.plan is None:
            self._brakes.moved()
        if planning.adopt(self._flow, decided.plan or [], note=decided.why, by="model") is None:
            self._notes.append("a person has changed the plan meanwhile: yours was passed over")

    def _edited(self) -> bool:
        """Go on by what a person has made of the plan meanwhile."""
        edited = planning.take_edit(self._flow)
        if edited is not None:
            self._notes.append(f"{edited.by or 'a person'} has changed the plan: it is version {edited.version} now")
        return edited is not None

    def _items_of_plan(self) -> list[str]:
        return [item.id for item in self._flow.plan.items] if self._flow.plan is not None else []

    def _shown_plan(self) -> list[str]:
        items = self._flow.plan.items if self._flow.plan is not None else []
        words = {True: "done", False: "failed", None: "waiting"}
        return [f"- {item.id} ({words[self._items.get(item.id)]}): {item.text}" for item in items]

    # --- carry out

    async def _carry_out(self, calls: Sequence[Call]) -> None:
        """Run the calls of a decision, several side by side; a failure is a fact that the model is shown."""
        ended: Sequence[Done] = (
            [await self._one(calls[0])]
            if len(calls) == 1
            else await self._task.gather(*(self._one(call) for call in calls))
        )
        for call, done in zip(calls, ended, strict=True):
            self._remember(done)
            self._brakes.called(call, done)
            if call.item is not None:
                self._items[call.item] = done.ok

    async def _one(self, call: Call) -> Done:
        tool, arguments = self._bound(call)
        planning.attribute(self._flow, call.item)
        begun = self._task.spawn(tool, **arguments) if isinstance(tool, Kind) else self._task.call(tool, **arguments)
        planning.attribute(self._flow, None)
        step = cast("ToolStep[Any] | Child[Any]", begun)
        shown = call_text(tool.name, codec.encode(call.arguments), tuple(tool.arguments.signature.parameters))
        try:
            result = await step
        except TaskCancelled:
            return Done(step.step_id, shown, tool.name, ok=False, text="its task was cancelled")
        except (StepFailed, TaskFailed) as failed:
            return Done(
                step.step_id, shown, tool.name, ok=False, text=f"{failed.failure.type}: {failed.failure.message}"
            )
        text = result if isinstance(result, str) else codec.encode(result).decode()
        return Done(step.step_id, shown, tool.name, ok=True, text=text[:RESULT])

    def _bound(self, call: Call) -> tuple[Ability, Mapping[str, Any]]:
        """Find the tool of a recorded call. Pauses when today's code has it no more, or with other parameters."""
        tool = self._agent.tools.get(call.tool)
        try:
            if tool is not None:
                return tool, tool.arguments.decode(codec.encode(call.arguments))
            why = "the agent has no such tool now"
        except codec.NotStorable as error:
            why = f"its parameters are others now: {error}"
        task_id = self._task.task_id
        raise self._flow.outdated(
            self._flow.place(),
            f"The model decided to call {call.tool} when this task ran before; {why}. Nothing was run. Deploy the old "
            f"code, or: outlive cancel {task_id}",
        )

    def _remember(self, done: Done) -> None:
        self._done.append(done)
        self._by_step[done.step] = done

    # --- people

    async def _ask(self, question: Question) -> None:
        """A person's answer is a fact like a tool's result."""
        asking = self._task.ask(question.text, choices=question.choices)
        answer = await asking
        self._remember(Done(_step_of(asking), f"ask_person({question.text[:160]!r})", PERSON, ok=True, text=answer))
        self._brakes.moved()

    async def _unanswered(self, failed: StepFailed) -> None:
        """The model gave no answer, however often it was asked: a person looks after it, and says when to ask again."""
        failure = failed.failure
        why = f"The model gave no answer ({failure.error_class}): {failure.type}: {failure.message}"
        while not self._edited():
            asking = self._task.ask(f"{why[:1900]} Ask it again?", choices=[AGAIN, STOP])
            stopped_before = _step_of(asking) in self._flow.history.done
            if await asking == AGAIN:
                break
            if not stopped_before:  # else a person has had the task go on: they are asked anew
                raise Ended(msgspec.structs.replace(failure, step_id=None)) from failed
        self._brakes.moved()

    async def _mind(self, decided: Decided) -> None:
        """Ask a person when the model gives nothing of use, or goes round in circles."""
        self._unusable = 0 if decided.usable else self._unusable + 1
        if self._unusable > self._agent.repairs:
            evidence: str | None = (
                f"The last {self._unusable} answers of {decided.model} could not be used: {'; '.join(decided.problems)}"
            )
        else:
            evidence = self._brakes.evidence
        if evidence is not None:
            await self._ask(Question(text=f"{evidence.rstrip('.')}. What should it do? (Or cancel the task.)"[:2000]))
            self._brakes.release()
            self._unusable = 0

    # --- finish

    def _output(self, decided: Decided) -> Any:
        wanted = self._agent.output.types["output"]
        try:
            return codec.unpack(codec.encode(decided.output), wanted)
        except codec.NotStorable as error:
            raise self._flow.outdated(
                self._flow.place(),
                f"The output that was decided does not fit the type that is now declared: {error}. Deploy the old "
                f"code, or: outlive cancel {self._task.task_id}",
            ) from error


def _step_of(asking: object) -> str:
    return str(getattr(asking, "step_id", ""))
