"""Customer A of ICBC sends 10,000 to customer B of CCB: two banks, two databases, no money lost.

======================  ===========================================================
``money``               amounts: whole minor units of a currency
``orders``              orders of customers, and the reasons to refuse them
``books``               a bank's tables: accounts, journal, transfers
``booking``             the changes that a transfer makes in the books
``queries``             the books read for the API and the pages
``databases``           engines and tables
``icbc``                the bank of the payer
``ccb``                 the bank of the payee
``accounts``            accounts opened from the command line
``ways``                the same transfer by a half message, an outbox, and XA
``steps``               the nine steps of each transfer, as they happen
``listener``            the same in the form of RocketMQ's tutorials
``web``                 the banks over HTTP: an API and pages
``service``             one bank as a program
``tour``                all of it at once, with accidents and an audit of the books
======================  ===========================================================
"""
