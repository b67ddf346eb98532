"""Who looks? A console in the browser, for Headrace and for any other Kafka: it is a client, no part of a broker."""
