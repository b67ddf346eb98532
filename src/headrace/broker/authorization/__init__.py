"""Whether those who ask may: what each API key refuses, hides and leaves out, in Apache Kafka's own way."""
