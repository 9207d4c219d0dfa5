"""Customer A of ICBC sends 10,000 to customer B of CCB: two banks, two databases, no money lost.

======================  ===========================================================
``money``               amounts: whole minor units of a currency
``orders``              what a customer asks for, and what is refused
``books``               a bank's tables: accounts, journal, transfers
``booking``             what a transfer does to the books
``databases``           engines, and tables made
``icbc``                the bank that pays
``ccb``                 the bank that is paid
``accounts``            accounts opened from the command line
``ways``                the same transfer by a half message, an outbox, and XA
``steps``               the nine steps of each transfer, as they happen
``listener``            the same in the form of RocketMQ's tutorials
``faces``               what banks show by HTTP: an API and pages
``service``             one bank as a program
``tour``                all of it at once, with accidents, and the books audited
======================  ===========================================================
"""
