"""All of it at once: a broker, two banks, many customers, accidents, and an auditor.

==================  ===============================================================
``settings``        the options
``world``           the programs, and the databases of the banks
``programs``        one program: started, killed, started again
``orders``          random orders of the customers
``customers``       customers who repeat their orders until they have an answer
``accidents``       which program is killed when, and which message comes twice
``audit``           the books of both banks, read at any moment, and their mistakes
``record``          the events so far
``view``            the record, live on a terminal; or as lines without one
``report``          the results
``reconciliation``  its three ledgers, reconciled as every night at a bank
``run``             the tour from beginning to end
==================  ===============================================================
"""
