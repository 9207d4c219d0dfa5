"""All of it at once: a broker, two banks, many customers, accidents, and an auditor.

==================  ===============================================================
``settings``        what can be chosen
``world``           the programs, and the databases of the banks
``programs``        one program: started, killed, started again
``orders``          what the customers want, by lot
``customers``       who ask for it, again and again until they have an answer
``accidents``       who is killed when, and which message comes twice
``audit``           both books read at any moment, and what is wrong with them
``record``          what has happened so far
``view``            that, live on a terminal; or as lines where there is none
``report``          what it came to
``reconciliation``  the three ledgers of it, reconciled as each night of a bank
``run``             the tour from beginning to end
==================  ===============================================================
"""
