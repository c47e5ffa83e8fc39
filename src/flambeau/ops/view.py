"""View records: layout rules without a kernel."""
