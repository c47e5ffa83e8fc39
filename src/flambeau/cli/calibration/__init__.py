"""The parts of `flambeau calibrate`: microbenchmarks, the fit of a profile's constants, the profile's file."""
