"""The tree of services: order, restarts of the rest, intensity, fatal errors. Small fake services, no servers."""

from collections import defaultdict
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

import anyio
import anyio.abc
import anyio.lowlevel
import pytest

from outlive.actors import supervision
from outlive.actors.supervision import ChildSpec, ServiceStopped, rest_for_one
from outlive.protocol.restart import Intensity


class Fatal(Exception):
    """Not to be restarted."""


class Services:
    """Services a, b, c ... that note when they begin and end, and fail when told."""

    def __init__(self, names: str, *, fatal: tuple[type[BaseException], ...] = ()) -> None:
        self.told: list[str] = []
        self.rounds = 0
        self.start_errors: dict[str, list[Exception | None]] = {}
        self.end_errors: dict[str, Exception] = {}
        self.holds: dict[str, anyio.Event] = {}
        """What the ends of services wait for."""
        self.specs = [ChildSpec(name, self._starter(name), fatal) for name in names]
        self.ending: defaultdict[str, anyio.Event] = defaultdict(anyio.Event)
        self.ended: defaultdict[str, anyio.Event] = defaultdict(anyio.Event)
        self._fail: dict[str, Callable[[Exception | None], None]] = {}
        self._round = anyio.Event()

    def fail(self, name: str, error: Exception | None) -> None:
        """Let a service raise, or return."""
        self._fail[name](error)

    def started(self) -> None:
        self.rounds += 1
        self._round.set()

    async def round(self, number: int) -> None:
        """Wait until all run for the n-th time."""
        while self.rounds < number:
            self._round = anyio.Event()
            await self._round.wait()

    def taken(self) -> str:
        told, self.told = " ".join(self.told), []
        return told

    def _starter(self, name: str) -> Callable[[anyio.abc.TaskStatus[None]], Awaitable[None]]:
        async def serve(status: anyio.abc.TaskStatus[None]) -> None:
            self.told.append(f"+{name}")
            failing, errors = anyio.Event(), list[Exception | None]()

            def fail(error: Exception | None) -> None:
                errors.append(error)
                failing.set()

            self._fail[name] = fail
            try:
                await anyio.lowlevel.checkpoint()
                if (planned := self.start_errors.get(name)) and (error := planned.pop(0)) is not None:
                    raise error
                status.started()
                await failing.wait()
                if errors[0] is not None:
                    raise errors[0]
            finally:
                self.ending[name].set()
                with anyio.CancelScope(shield=True):
                    if name in self.holds:
                        await self.holds[name].wait()
                    await anyio.sleep(0.005)  # an end that takes its time keeps the others waiting
                self.told.append(f"-{name}")
                self.ended[name].set()
                if name in self.end_errors:
                    raise self.end_errors[name]

        return serve


@asynccontextmanager
async def tree(services: Services, restarts: int = 5, period: float = 60) -> AsyncGenerator[None]:
    """Run the tree beside the test, stop it at the end."""
    async with anyio.create_task_group() as group:
        group.start_soon(_serve, services, Intensity(restarts=restarts, period=period))
        with anyio.fail_after(5):
            await services.round(1)
            yield
        group.cancel_scope.cancel()


async def _serve(services: Services, intensity: Intensity) -> None:
    await rest_for_one(services.specs, intensity, started=services.started)


async def _ends_with(services: Services, restarts: int, fail: Sequence[tuple[str, Exception]]) -> BaseException:
    """Run a tree, fail services one after the other, and return what the tree raises."""
    error: BaseException | None = None
    try:
        async with anyio.create_task_group() as group:
            group.start_soon(_fail_in_turn, services, fail)
            with anyio.fail_after(5):
                await _serve(services, Intensity(restarts=restarts, period=60))
    except BaseException as raised:  # noqa: BLE001  # the test looks at what it is
        error = raised
    assert error is not None, "the tree ended without an error"
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


async def _fail_in_turn(services: Services, fail: Sequence[tuple[str, Exception]]) -> None:
    for number, (name, error) in enumerate(fail, 1):
        await services.round(number)
        services.fail(name, error)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervision, "BACKOFF", 0.001)


async def test_services_start_in_order_and_stop_in_reverse_order_one_by_one() -> None:
    services = Services("abc")
    async with tree(services):
        assert services.taken() == "+a +b +c"
    assert services.taken() == "-c -b -a"


async def test_a_service_waits_until_the_one_before_has_started() -> None:
    services = Services("ab")
    starts, hold = anyio.Event(), anyio.Event()

    async def slow(status: anyio.abc.TaskStatus[None]) -> None:
        services.told.append("+slow")
        starts.set()
        await hold.wait()
        status.started()
        await anyio.sleep_forever()

    services.specs.insert(1, ChildSpec("slow", slow))
    async with anyio.create_task_group() as group:
        group.start_soon(_serve, services, Intensity())
        with anyio.fail_after(5):
            await starts.wait()
        await anyio.sleep(0.02)
        assert services.taken() == "+a +slow"
        hold.set()
        await services.round(1)
        assert services.taken() == "+b"
        group.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("failing", "then"), [("a", "-a -d -c -b +a +b +c +d"), ("b", "-b -d -c +b +c +d"), ("d", "-d +d")]
)
async def test_a_failure_restarts_the_service_and_those_after_it(failing: str, then: str) -> None:
    services = Services("abcd")
    async with tree(services):
        services.taken()
        services.fail(failing, RuntimeError("broken"))
        await services.round(2)
        assert services.taken() == then


async def test_a_service_that_returns_has_failed() -> None:
    services = Services("ab")
    async with tree(services):
        services.fail("b", None)
        await services.round(2)
    assert isinstance(await _ends_with(Services("ab"), 0, [("b", ServiceStopped("x"))]), ServiceStopped)


async def test_failures_at_the_same_moment_are_one_and_the_first_in_the_order_counts() -> None:
    services = Services("abc")
    async with tree(services, restarts=1):
        services.taken()
        services.fail("c", RuntimeError("later"))
        services.fail("a", RuntimeError("first"))
        await services.round(2)
        assert services.taken().endswith("+a +b +c")
        await anyio.sleep(0.02)
        assert services.rounds == 2


async def test_a_service_that_fails_while_others_are_stopped_is_not_forgotten() -> None:
    """The first of the tree fails while the tree is busy with the last."""
    services = Services("abc")
    async with tree(services):
        services.taken()
        services.holds["c"] = anyio.Event()
        services.fail("b", RuntimeError("broken"))
        await services.ending["c"].wait()
        services.fail("a", RuntimeError("broken too"))
        await services.ended["a"].wait()
        services.holds["c"].set()
        await services.round(2)
        assert services.told.count("+a") == 1


async def test_a_service_that_fails_while_others_start_is_not_forgotten() -> None:
    services = Services("abc")
    starts, hold = anyio.Event(), anyio.Event()

    async def slow(status: anyio.abc.TaskStatus[None]) -> None:
        starts.set()
        await hold.wait()
        status.started()
        await anyio.sleep_forever()

    services.specs[2] = ChildSpec("slow", slow)
    async with anyio.create_task_group() as group:
        group.start_soon(_serve, services, Intensity())
        with anyio.fail_after(5):
            await starts.wait()
            services.fail("a", RuntimeError("broken"))
            await services.ended["a"].wait()
            hold.set()
            await services.round(1)
        assert services.taken() == "+a +b -a -b +a +b"
        group.cancel_scope.cancel()


async def test_a_service_that_fails_at_its_end_is_restarted_like_the_others() -> None:
    services = Services("abc")
    services.end_errors["c"] = RuntimeError("cannot end well")
    async with tree(services, restarts=1):
        services.fail("b", RuntimeError("broken"))
        await services.round(2)


async def test_a_service_that_does_not_come_up_is_tried_again() -> None:
    services = Services("abc")
    services.start_errors["b"] = [OSError("refused"), OSError("refused"), None]
    async with tree(services):
        assert services.taken() == "+a +b -b +b -b +b +c"


async def test_too_many_restarts_within_the_period_end_the_tree_in_reverse_order() -> None:
    services = Services("abc")
    last = RuntimeError("third")
    error = await _ends_with(services, 2, [("b", RuntimeError("one")), ("b", RuntimeError("two")), ("b", last)])
    assert error is last
    assert services.rounds == 3
    assert services.taken().endswith("-b -c -a")


async def test_restarts_that_are_long_past_do_not_count() -> None:
    services = Services("ab")
    async with tree(services, restarts=1, period=0.05):
        for number in range(2, 6):
            services.fail("b", RuntimeError("now and then"))
            await services.round(number)
            await anyio.sleep(0.06)


async def test_a_fatal_error_is_not_restarted_even_if_it_comes_in_groups() -> None:
    for error in (Fatal("over"), ExceptionGroup("g", [ExceptionGroup("g", [Fatal("over")])])):
        services = Services("abc", fatal=(Fatal,))
        raised = await _ends_with(services, 5, [("b", error)])
        assert isinstance(raised, Fatal)
        assert services.rounds == 1
        assert services.taken().split()[3:] == ["-b", "-c", "-a"]


async def test_a_fatal_error_at_the_start_is_fatal_too() -> None:
    services = Services("abc", fatal=(Fatal,))
    services.start_errors["b"] = [ExceptionGroup("g", [Fatal("over")])]
    assert isinstance(await _ends_with(services, 5, []), (Fatal, ExceptionGroup))
    assert services.taken() == "+a +b -b -a"


async def test_a_tree_that_is_cancelled_while_it_starts_stops_what_runs() -> None:
    services = Services("ab")

    async def never(status: anyio.abc.TaskStatus[None]) -> None:
        services.told.append("+never")
        try:
            await anyio.sleep_forever()
        finally:
            services.told.append("-never")

    services.specs.append(ChildSpec("never", never))
    with anyio.move_on_after(0.03):
        await _serve(services, Intensity())
    assert services.taken() == "+a +b +never -never -b -a"


async def test_restarts_wait_longer_and_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervision, "BACKOFF", 0.04)
    services = Services("a")
    services.start_errors["a"] = [*[OSError("refused")] * 3, None]
    begun = anyio.current_time()
    async with tree(services):
        assert anyio.current_time() - begun >= 0.12  # 0 + 1 + 2 times the pause
