"""Which schedule is the best within a memory limit, and how good can one be at all?"""
