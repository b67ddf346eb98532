"""What travels: declared messages, the codecs generated from them, API keys. No I/O, no clock."""
