"""What a simulation or a rehearsal shows: a table for the terminal, JSON, and one HTML page."""

from tidegate.cli.report._data import result_data, result_json
from tidegate.cli.report._page import need_page, page_of
from tidegate.cli.report._table import show_result
from tidegate.cli.report._words import verdict_sentence

__all__ = ["need_page", "page_of", "result_data", "result_json", "show_result", "verdict_sentence"]
