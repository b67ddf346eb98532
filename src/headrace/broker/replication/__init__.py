"""Copies of partitions on several brokers: what leaders and followers decide, and who carries it out.

`leader.py`, `follower.py`, `acks.py` and `isr_changes.py` do no I/O and know no clock: they are run by the million in
`tests/broker/replication/model.py`. `fetcher.py` and `manager.py` move what they decide.
"""
