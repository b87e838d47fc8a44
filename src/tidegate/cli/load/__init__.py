"""An open-loop load client: requests leave when they are due, however slow the answers are.

A closed loop would send less to a slow server and so hide its queue (coordinated omission). Every time counts from the
moment a request was due, not from the moment it was sent: a client that is late cannot hide a wait either.
"""

from tidegate.cli.load._client import Answer, Exchange, chat_request
from tidegate.cli.load._open_loop import Target, ask, in_time
from tidegate.cli.load._prompts import prompt_text

__all__ = ["Answer", "Exchange", "Target", "ask", "chat_request", "in_time", "prompt_text"]
