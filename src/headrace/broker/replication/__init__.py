"""Copies of partitions on several brokers: what leaders and followers decide, and who carries it out.

`leader.py`, `follower.py`, `acks.py` and `isr_changes.py` do no I/O and know no clock: they are run by the million in
`tests/broker/replication/model.py`. `fetcher.py` and `manager.py` move what they decide.

A broker is a number and an incarnation, never a number alone: a new machine may be given the number of a process that
lives on. Every role is taken for an incarnation, and every message is meant for one:

- A partition whose leader is this broker's number is led here while the registration in this broker's metadata is that
  of this process (`Replicas.holds_number`). A registration comes before what is decided of it, and begins a new leader
  epoch wherever its number led: so at most one process leads in an epoch of a partition.
- A process that reads of a later registration of its number, or that the controller refuses for one, does nothing any
  more: it leads nothing, coordinates nothing, says so and ends (`metadata/identity.py`).
- Fetches, heartbeats and AlterPartition name the sender's broker epoch, which is that of its registration; the
  controller and leaders refuse one that is stale.
- A connection to another broker begins by naming the incarnation that is meant: another refuses it. It ends when that,
  or the address, is another by now (`broker/peers.py`).
"""
