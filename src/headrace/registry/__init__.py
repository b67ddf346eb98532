"""A schema registry that speaks Confluent's REST interface; its state is the compacted topic `_schemas`."""
