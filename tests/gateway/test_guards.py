"""A fleet that leaves replicas alone: breakers, outliers, slow start, and what is chosen then."""

from __future__ import annotations

import pytest

from gateway.breaker import State
from gateway.choosable import EJECTED_REASON
from gateway.config import Breaker, Outliers, Resilience
from gateway.errors import NoReplica, NoRoom
from gateway.fleet import Replica
from gateway.guards import Guards
from gateway.place import FleetPlacer, FleetTicket
from gateway.request import Intent, Kind, Outcome, Prompt
from tests.gateway.test_place import House, prompt_of

SETTINGS = Resilience(breaker=Breaker(failures=3, open_s=2.0), outliers=Outliers(window_s=6.0, least_requests=5))


class Guarded(House):
    """A house whose placer has guards with few failures and a clock that moves when told."""

    def __init__(self, count: int = 2, policy: str = "least_loaded") -> None:
        super().__init__(count, policy)
        self.guards = Guards(self.fleet, SETTINGS)
        self.placer = FleetPlacer(
            self.fleet,
            self.index,
            self.placer.policy,
            guess_ttl_s=10.0,
            receipts=100,
            on_fault=self.faults.append,
            guards=self.guards,
            clock=self.clock,
        )
        self.fleet.on_joined = lambda replica: self.guards.joined(replica, self.clock())

    def later(self, seconds: float) -> None:
        self.clock.now += seconds
        self.guards.tick(self.clock.now)

    def sent_to(self, replica: Replica) -> FleetTicket:
        """A request that is placed on a replica, in turns with the others."""
        while (ticket := self.place(None)).replica is not replica:
            ticket.close(Outcome.CLIENT_LEFT)
        return ticket

    def answer(self, status: int, *, only: Replica | None = None) -> None:
        """One request that is answered with a status."""
        others = [replica for replica in self.replicas if only is not None and replica is not only]
        for replica in others:
            replica.draining = True
            self.fleet.refresh(replica)
        ticket = self.place(prompt_of(64))
        ticket.answered(status)
        if status < 300:
            self.clock.now += 0.01
            ticket.first_byte()
        ticket.close(Outcome.OK if status < 400 else Outcome.ENGINE_ERROR if status >= 500 else Outcome.CLIENT_ERROR)
        for replica in others:
            replica.draining = False
            self.fleet.refresh(replica)


@pytest.mark.parametrize("status", [400, 404, 413, 422, 429, 503])
def test_what_is_no_failure_of_the_replica_never_opens_its_breaker(status: int) -> None:
    """FC-30, FC-31: bad requests and a polite 'full'."""
    house = Guarded(1)
    for _ in range(50):
        house.answer(status)
    assert (house.replicas[0].eligible, house.guards.state(house.replicas[0])) == (True, State.CLOSED)


def test_failures_in_a_row_open_it_one_request_tries_and_success_closes_it() -> None:
    house = Guarded(2)
    sick, well = house.replicas
    for _ in range(3):
        house.answer(500, only=sick)
    assert (sick.ejected, sick.eligible, house.guards.state(sick)) == ("breaker", False, State.OPEN)
    assert {house.place(None).replica for _ in range(4)} == {well}
    house.later(2.0)
    assert house.guards.state(sick) is State.HALF_OPEN
    trial = house.sent_to(sick)
    assert (sick.eligible, house.guards.state(sick)) == (False, State.TRIAL)
    assert {house.place(None).replica for _ in range(4)} == {well}  # one on trial at a time
    trial.answered(200)
    assert (sick.ejected, house.guards.state(sick)) == (None, State.CLOSED)
    assert house.guards.ejections["r0", "breaker"] == 1


@pytest.mark.parametrize("how", ["move", "engine_error"])
def test_a_failed_trial_opens_it_again_and_counts_once(how: str) -> None:
    house = Guarded(2)
    sick, _ = house.replicas
    for _ in range(3):
        house.answer(500, only=sick)
    house.later(2.0)
    trial = house.sent_to(sick)
    if how == "move":
        trial.move(fault=True)
        trial.close(Outcome.OK)
    else:
        trial.close(Outcome.ENGINE_ERROR)
    assert house.guards.state(sick) is State.OPEN
    house.later(3.9)
    assert house.guards.state(sick) is State.OPEN
    house.later(0.2)
    assert house.guards.state(sick) is State.HALF_OPEN


@pytest.mark.parametrize("status", [None, 429, 503])
def test_a_trial_that_tells_nothing_is_made_again(status: int | None) -> None:
    """FC-31: a client that left, an engine that is full."""
    house = Guarded(2)
    sick, _ = house.replicas
    for _ in range(3):
        house.answer(500, only=sick)
    house.later(2.0)
    trial = house.sent_to(sick)
    if status is not None:
        trial.answered(status)
    trial.close(Outcome.CLIENT_LEFT if status is None else Outcome.ENGINE_ERROR)
    assert (house.guards.state(sick), sick.eligible) == (State.HALF_OPEN, True)


def test_where_all_are_ejected_all_are_used_and_the_reason_says_so() -> None:
    house = Guarded(2)
    for replica in house.replicas:
        for _ in range(3):
            house.answer(500, only=replica)
    assert not any(replica.eligible for replica in house.replicas)
    ticket = house.place(prompt_of(64))
    assert ticket.decision.reason == EJECTED_REASON
    house.replicas[0].healthy = house.replicas[1].healthy = False
    with pytest.raises(NoReplica):
        house.place(prompt_of(64))


def test_an_outlier_by_failures_is_ejected_for_a_while_and_comes_back_by_itself() -> None:
    house = Guarded(3)
    house.later(0.0)
    for number in range(20):
        for replica in house.replicas:
            house.answer(500 if replica is house.replicas[1] and number % 2 else 200, only=replica)
    house.later(1.0)
    seen = []
    for seconds in (0.0, 14.0, 2.0, 1.0):  # at last: what it did before is forgotten
        house.later(seconds)
        seen.append([replica.ejected for replica in house.replicas])
    assert seen == [[None, "failures", None]] * 2 + [[None] * 3] * 2


def test_the_last_one_is_never_ejected_as_an_outlier() -> None:
    house = Guarded(2)
    for number in range(20):
        house.answer(500 if number % 2 else 200, only=house.replicas[0])
        house.answer(200, only=house.replicas[1])
    house.replicas[1].healthy = False
    house.fleet.refresh(house.replicas[1])
    house.later(7.0)
    assert house.replicas[0].eligible


def test_what_a_replica_that_left_did_is_forgotten() -> None:
    """FC-14."""
    house = Guarded(2)
    for _ in range(3):
        house.answer(500, only=house.replicas[0])
    late = house.place(None)
    house.fleet.remove("r1")
    house.guards.forget(house.replicas[1])
    late.answered(500)
    late.close(Outcome.ENGINE_ERROR)
    assert house.replicas[1] not in house.guards._guards
    house.fleet.remove("r0")
    house.guards.forget(house.replicas[0])
    assert (len(house.guards._guards), len(house.guards.ejections), len(house.guards.warming)) == (0, 0, 0)


@pytest.mark.parametrize("policy", ["least_loaded", "cost", "round_robin"])
def test_a_replica_that_joins_a_busy_fleet_gets_its_share_slowly(policy: str) -> None:
    house = Guarded(2, policy)
    tickets = [house.place(prompt_of(64, seed)) for seed in range(40)]
    house.guards.warming.clear()
    house.replicas.append(house.add("new"))
    new = house.replicas[2]
    house.guards.joined(new, house.clock())
    holder = new.holders[0]

    def most_given(seconds: float) -> int:
        house.clock.now += seconds
        tickets.extend(house.place(prompt_of(64, 100 + seed)) for seed in range(12))
        return house.fleet.view.in_flight[holder]

    at_first = most_given(0.0)
    assert 1 <= at_first <= 3
    halfway = most_given(5.0)
    assert at_first < halfway <= 16
    for ticket in tickets:
        ticket.close(Outcome.CLIENT_LEFT)
    house.later(10.0)
    assert new not in house.guards.warming


def test_a_fleet_that_is_all_new_is_not_held_back() -> None:
    """FC-28: siblings share a replica at the start of everything."""
    house = Guarded(4, "cost")
    for replica in house.replicas:
        house.guards.joined(replica, house.clock())
    tokens = prompt_of(4000)
    assert len({house.place(tokens).replica.name for _ in range(8)}) == 1


def test_a_new_replica_that_is_the_only_one_gets_all() -> None:
    house = Guarded(0)
    house.replicas.append(house.add("only"))
    assert house.replicas[0] in house.guards.warming
    assert {house.place(None).replica for _ in range(20)} == {house.replicas[0]}


def test_full_ranks_are_passed_over_and_where_all_are_full_a_request_waits_but_a_retry_does_not() -> None:
    house = Guarded(2)
    house.fleet.most_requests = 2
    tickets = [house.place(None) for _ in range(4)]
    assert house.loads() == [(2, 0, 0), (2, 0, 0)]
    with pytest.raises(NoRoom) as crowd:
        house.place(None)
    assert crowd.value.must_wait()
    assert house.loads() == [(2, 0, 0), (2, 0, 0)]
    tickets[0].move(fault=True)
    assert sorted(load[0] for load in house.loads()) == [1, 3]
    assert not crowd.value.must_wait()
    for ticket in tickets:
        ticket.close(Outcome.CLIENT_LEFT)
    assert house.fleet.full == set()


def test_what_is_kept_by_one_replica_does_not_wait_for_room() -> None:
    house = Guarded(2)
    house.fleet.most_requests = 1
    tickets = [house.place(None), house.place(None)]
    pinned = house.placer.place(Intent(Kind.STORED, {}, pin="r0"), Prompt(None, "kind"), "id")
    assert pinned.replica.name == "r0"
    assert len(tickets) == 2
