"""Second derivatives that torch lacks or makes slow, and the replacement of torch functions for a while."""
