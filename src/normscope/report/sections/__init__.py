"""What each kind of result says and shows: verdicts, charts, tables. One file a kind; each reads plain JSON."""
