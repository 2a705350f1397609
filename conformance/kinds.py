"""All kinds of function that can be checked, in the order in which a signature is tried."""

from .advantages import ADVANTAGES, GAE, RETURNS, WHITEN
from .kl import KL, KL_LOSS, KL_REWARD
from .policy import CORRECTION, POLICY_LOSS
from .tokens import LOG_PROBS, RESPONSE_MASK, TOKEN_REWARDS
from .values_and_pairs import PREFERENCE_LOSS, REDUCER, VALUE_LOSS

LOSSES = (POLICY_LOSS, VALUE_LOSS, PREFERENCE_LOSS, REDUCER)
REST = (KL, KL_LOSS, KL_REWARD, TOKEN_REWARDS, ADVANTAGES, GAE, RETURNS, WHITEN, CORRECTION)
KINDS = {kind.name: kind for kind in (*LOSSES, *REST, LOG_PROBS, RESPONSE_MASK)}
