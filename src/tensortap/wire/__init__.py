"""One encoding for disk and network: the field's protobuf messages."""
