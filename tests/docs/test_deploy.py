"""`deploy/`: commands and settings that there are. No container is built or run: that needs an engine."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from headrace.cli.start import parser, read_settings
from headrace.cluster.broker_config import BrokerConfig

DEPLOY = Path(__file__).parents[2] / "deploy"
DOCKERFILE = (DEPLOY / "Dockerfile").read_text("utf-8")


def _words(instruction: str) -> list[str]:
    found = re.search(rf"^{instruction} (\[.*\])$", DOCKERFILE, re.MULTILINE)
    assert found is not None
    words: list[str] = json.loads(found[1])
    return words


def _config(arguments: list[str]) -> BrokerConfig:
    config = BrokerConfig.parse(read_settings(parser().parse_args(arguments)))
    assert config.unknown() == {}
    return config


def test_the_image_starts_a_broker_that_its_clients_can_reach() -> None:
    program, command, *options = [*_words("ENTRYPOINT"), *_words("CMD")]
    assert (program, command) == ("headrace", "start")
    config = _config(options)
    assert list(config.get_list("log.dirs")) == ["/var/lib/headrace"]
    assert [str(one) for one in config.get_list("advertised.listeners")] == ["PLAINTEXT://localhost:9092"]


def test_the_image_is_made_of_files_that_there_are() -> None:
    for line in re.findall(r"^COPY (?!--from)(.*) \S+$", DOCKERFILE, re.MULTILINE):
        for name in line.split():
            assert (DEPLOY.parent / name).exists(), name


def test_three_brokers_differ_in_their_numbers_and_addresses_alone() -> None:
    yaml: Any = pytest.importorskip("yaml")
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text("utf-8"))["services"]
    brokers = [service for name, service in services.items() if name.startswith("kafka")]
    seen = set()
    for broker in brokers:
        program, command, *options = [*broker["entrypoint"], *broker["command"]]
        assert (program, command) == ("headrace", "start")
        mounted, _, inside = broker["volumes"][0].removesuffix(":ro").partition(":")
        options[options.index(inside)] = str(DEPLOY / mounted)
        config = _config(options)
        assert config.get_int("min.insync.replicas") == 2
        seen.add((config.get_int("node.id"), str(config.get_list("advertised.listeners"))))
    assert len(seen) == len(brokers) == 3
