"""The engine: what it schedules, computes, samples and gives out in each step, and the thread that runs it."""
