"""A fitted model, a run or an exported folder behind a web page and a JSON API."""
