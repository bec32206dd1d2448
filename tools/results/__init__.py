"""The pages about our own figures, made from results/ and nothing else."""
