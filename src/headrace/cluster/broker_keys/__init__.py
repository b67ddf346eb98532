"""The tables of all broker configuration keys of Kafka 4.3, one module per area; `broker_config` puts them together."""
