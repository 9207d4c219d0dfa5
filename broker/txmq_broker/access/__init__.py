"""Who may do what: accounts, what each request needs, and the authorizer that compares them."""
