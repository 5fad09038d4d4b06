"""Streaming to a debug server: threads that are thin, around parts that have none.

availability  what is believed of the server, and when to try it again
lineup        which run may be sent now
course        how far the stream of one run has come
outbox        what waits to be sent, in the room that all runs share
account       what became of the records of one run
questions     which reply belongs to what
link          one lock, and what the streams to one server share under it

sender        starts streams and gives them up, in a thread of its own
run_stream    the stream of one run, in gRPC's threads
calls         single messages beside the streams
delivery      what was spooled, when the server is back
"""
