"""A fitted model, a run or an exported folder behind a web page and a JSON API.

    load_served("model")                      what is served, from a folder
    create_app(served, ServeSettings())       the web application, for any ASGI server
    run_server(served, ServeSettings())       serves it until it is stopped: calprompt serve

Needs the extra `serve`. An exported folder is served without torch.
"""
