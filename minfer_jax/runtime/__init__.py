"""What turns pure functions into programs: buckets (every padding decision), the jitted programs, their cache."""
