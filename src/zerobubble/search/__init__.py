"""Which schedule is the best within a memory limit, and how good can one be at all?"""

from zerobubble.search.bounds import Bound, lower_bound, lower_bounds
from zerobubble.search.engine import SearchResult, search

__all__ = ["Bound", "SearchResult", "lower_bound", "lower_bounds", "search"]
