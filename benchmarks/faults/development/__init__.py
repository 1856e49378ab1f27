"""The development half of NormFaults: rules and thresholds may be chosen with it in sight."""
