"""The UDF interface: functions that see messages, with their metadata, queues and output routing."""
