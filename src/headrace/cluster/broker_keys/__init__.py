"""The tables of all broker configuration keys of Kafka 4.3; `broker_config` puts them together."""
